import t from 'tap'
import { startLoad } from './load.ts'
import { answers, buildImage, openProject, run } from './support.ts'

t.setTimeout(180_000)

await buildImage()
const project = await openProject(t)
await project.compose('up', '--detach')
await answers(`${await project.url()}/readyz`, 200)
const token = await project.token('alice')

async function call (method: string, path: string, body?: unknown, credential = token) {
  const answer = await fetch(await project.url() + path, {
    method,
    headers: {
      ...credential === '' ? {} : { authorization: `Bearer ${credential}` },
      ...body === undefined ? {} : { 'content-type': 'application/json' }
    },
    body: body === undefined ? undefined : JSON.stringify(body)
  })
  const text = await answer.text()
  return { status: answer.status, headers: answer.headers, body: text === '' ? undefined : JSON.parse(text) }
}

await t.test('the contract holds through the published port, with a token made by exec', async t => {
  const created = await call('POST', '/plants', { id: 1, name: 'Fern', tag: 'indoor' })
  t.match(created, { status: 200, body: { name: 'Fern', tag: 'indoor' } })

  const taken = await call('POST', '/plants', { id: 1, name: 'Moss' })
  t.equal(taken.status, 400)
  t.match(taken.body, { error: Number, message: String })

  t.strictSame((await call('GET', '/plants')).body, [{ name: 'Fern', tag: 'indoor' }])

  const deleted = await call('DELETE', '/plants/1')
  t.match(deleted, { status: 204, body: undefined })

  const missing = await call('DELETE', '/plants/1')
  t.equal(missing.status, 404)
  t.match(missing.body, { error: Number, message: String })

  const stranger = await call('GET', '/plants', undefined, '')
  t.equal(stranger.status, 401)
  t.match(stranger.headers.get('www-authenticate'), /^Bearer/)
  t.match(stranger.body, { error: Number, message: String })
})

await t.test('inside, the service is nobody and can change nothing', async t => {
  const sh = (script: string) => project.inside('plant-store', 'sh', '-c', script)
  t.equal(await sh('id --user; id --group'), '1000\n1000')
  t.equal(await sh('tr "\\0" " " < /proc/1/cmdline'), 'node --max-semi-space-size=16 --heap-growing-percent=100 --no-allocation-site-pretenuring /app/src/main.ts serve', 'the program is the first process')

  const status = await sh('cat /proc/1/status')
  for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) t.match(status, new RegExp(`${set}:\\s0{16}\\n`))
  t.match(status, /NoNewPrivs:\s1\n/)

  t.match(await sh('grep " / " /proc/mounts'), / ro,/)
  t.match(await sh('touch /tmp/x 2>&1 || true'), /Read-only file system/)
  t.equal(await sh('find /app ! -user root'), '', 'and its code belongs to another')
})

await t.test('the service has no power over the database beyond its own tables', async t => {
  t.equal(await project.sql("select rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls from pg_roles where rolname = 'plant_store'"), 'f')
  t.equal(await project.sql("select has_database_privilege('plant_store', 'postgres', 'connect')"), 'f')
  t.equal(await project.sql("select rolpassword is null from pg_authid where rolname = 'postgres'"), 't', 'and the superuser no password to guess')
})

await t.test('while the database is stopped the answer is 503, and the plants are there after its return', async t => {
  await call('POST', '/plants', { id: 2, name: 'Ivy' })
  const before = await project.container('plant-store')

  await project.compose('stop', 'database')
  const url = await project.url()
  await answers(`${url}/readyz`, 503)
  t.equal((await fetch(`${url}/livez`)).status, 200)
  const away = await call('GET', '/plants')
  t.equal(away.status, 503)
  t.ok(away.headers.get('retry-after'))
  t.match(away.body, { error: Number, message: String })

  await project.compose('start', 'database')
  await answers(`${url}/readyz`, 200)
  t.strictSame((await call('GET', '/plants')).body, [{ name: 'Ivy' }])
  t.equal(await run('inspect', '--format={{.RestartCount}}', before), '0', 'the service was not restarted')
})

await t.test('stopped under load, it answers every request on every connection until it has said that it closes', async t => {
  const url = await project.url()
  const container = await project.container('plant-store')
  const bob = await project.token('bob')
  const load = startLoad(t, { url, token: bob, callers: 16, oneConnection: true })
  const stopped = project.compose('stop', 'plant-store')

  await load.firstTold()
  const newcomer = await fetch(`${url}/plants`, { headers: { authorization: `Bearer ${bob}` } })
  t.equal(newcomer.status, 200, 'a connection opened meanwhile is served')
  t.equal(newcomer.headers.get('connection'), 'close')
  t.equal((await fetch(`${url}/readyz`)).status, 503)

  const { answered, told, failures, stored } = await load.ended()
  await stopped
  t.comment(`${answered} requests answered on 16 connections, ${failures.length} failed`)
  t.strictSame(failures, [])
  t.equal(told, 16)
  t.equal(await run('inspect', '--format={{.State.ExitCode}}', container), '0')

  await project.compose('down')
  await project.compose('up', '--detach')
  await answers(`${await project.url()}/readyz`, 200)
  t.strictSame((await call('GET', '/plants', undefined, bob)).body, stored, 'what was acknowledged is stored')
})

await t.test('a changed DATABASE_PASSWORD is in force for service and database alike', async t => {
  // Of characters that would have to be escaped in a URL.
  project.env.DATABASE_PASSWORD = "p/a?s'#1"
  await project.compose('up', '--detach')
  await answers(`${await project.url()}/readyz`, 200)
  t.equal((await call('GET', '/plants')).status, 200)

  const asBefore = project.inside('plant-store', 'env', 'PGPASSWORD=plants', 'plant-store', 'token', 'list')
  await t.rejects(asBefore, /password authentication failed/)
})

await t.test('a DATABASE_URL of the operator\'s takes the place of the database that comes along', async t => {
  await project.sql('create database other owner plant_store', 'postgres')
  project.env.DATABASE_URL = 'postgres://plant_store@database/other'
  await project.compose('up', '--detach')
  await answers(`${await project.url()}/readyz`, 200)
  t.equal(await project.sql('select count(*) from tokens', 'other'), '0')
  t.equal((await call('GET', '/plants')).status, 401)
})
