// Tests several servers in DATABASE_URL, a lost standby, and sessions that stop. Each test continues with the
// servers as the previous test has left them.
import { once } from 'node:events'
import { connect, createServer, type AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { maxConnections, openDatabase } from '../../src/database/database.ts'
import { migrate } from '../../src/database/migrate.ts'
import { Servers } from '../../src/database/servers.ts'
import { startPair } from '../system/faults/pair.ts'
import { openProxy } from '../system/faults/proxy.ts'
import { startApp } from '../support/app.ts'
import { openSession, sql } from '../support/database.ts'
import { isError } from '../support/error-response.ts'

const pair = await startPair(t)
const one = { name: 'one', text: 'select 1' }
const serverUrl = process.env.TEST_DATABASE_URL as string
const [primaryUrl, standbyUrl] = pair.urls
const { app, as } = await startApp(t, { DATABASE_URL: pair.url })
const alice = await as('alice')

const portOf = (url: string) => new URL(url).port
/** Returns the port of the server that the service chooses. */
const findPort = async (url: string) => portOf(`postgres://${(await new Servers(url).find()).name}`)
const createUntilStored = async (id: number) => {
  while ((await alice.create({ id, name: 'Moss' })).statusCode !== 200) await delay(10)
}

t.test('of several servers, the first fit one that responds is used', async (t) => {
  t.equal(await findPort(pair.url.replace('@', '@127.0.0.1:1,')), portOf(primaryUrl))
  t.strictSame(await migrate(pair.url), [])
  t.equal((await alice.create({ id: 1, name: 'Fern' })).statusCode, 200)
  const both = `${pair.url}?target_session_attrs`
  t.equal(await findPort(`${both}=primary`), portOf(primaryUrl))
  const errors = [{ code: 'ECONNREFUSED' }, { message: 'the server accepts no writes' }]
  await t.rejects(findPort(standbyUrl.replace('@', '@127.0.0.1:1,')),
    { message: 'no server accepts writes', errors })
  t.ok(pair.urls.map(portOf).includes(await findPort(`${both}=any`)))
  // The login succeeds, and then the server does not respond.
  const lock = await openSession(t, primaryUrl, 'begin; lock table pg_extension in access exclusive mode')
  await t.rejects(findPort(pair.url), { message: 'no server accepts writes' })
  await lock.query('commit')
  const searches = "select from pg_stat_activity where application_name = 'plant-store search'"
  for (const url of pair.urls) while ((await sql(url, searches)).length > 0) await delay(10)
})

t.test('a single read-only server serves lists, and rejects writes', async (t) => {
  const url = Object.assign(new URL(standbyUrl), {}).href
  const { app, log } = await startApp(t, { DATABASE_URL: url })
  const { authorization } = alice
  t.strictSame((await app.inject({ url: '/plants', headers: { authorization } })).json(), [{ name: 'Fern' }])
  const create = () => app.inject({
    method: 'POST', url: '/plants', headers: { authorization }, payload: { id: 2, name: 'Moss' }
  })
  for (let count = 0; count < 3; count++) {
    isError(t, await create(), 50307, 'The database accepts no writes at the moment.')
  }
  t.equal((await app.inject('/readyz')).statusCode, 200)
  const lines = log.map((line) => JSON.parse(line))
  t.match(lines.find(({ error }) => error === 50307), { err: { code: '25006' } })
})

t.test('an explicit target is also required of a single server', async (t) => {
  const url = `${standbyUrl}?target_session_attrs=primary`
  const database = openDatabase({ url, statementTimeoutMs: 1000 })
  t.teardown(database.close)
  await t.rejects(database.read(one),
    { name: 'DATABASE_UNAVAILABLE', cause: { message: 'the server accepts no writes' } })
})

t.test('behind a pooler, sessions keep their settings, and no place waits for a session', async (t) => {
  const { port, hostname } = new URL(primaryUrl)
  const server = createServer((near) => {
    const far = connect(Number(port), hostname)
    near.on('error', () => far.destroy()).pipe(far)
    // Changes the process id of the message BackendKeyData, as a pooler does.
    far.on('error', () => {}).on('data', (chunk: Buffer) => {
      const at = chunk.indexOf('K\0\0\0\f')
      if (at !== -1) chunk.writeUInt32BE(1, at + 5)
      near.write(chunk)
    }).on('end', () => near.end())
    t.teardown(() => { for (const socket of [near, far]) socket.destroy() })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  const { port: poolerPort } = server.address() as AddressInfo
  const url = primaryUrl.replace(`:${port}/`, `:${poolerPort}/`)
  const database = openDatabase({ url, statementTimeoutMs: 500 })
  t.teardown(database.close)
  const setting = { name: 'setting', text: "select current_setting('enable_seqscan')" }
  while (!await database.read(setting).then((rows) => t.strictSame(rows, [['on']]), () => false));
  const stop = async () => {
    const [[pid] = []] = await database.read({ name: 'backend', text: 'select pg_backend_pid()' })
    process.kill(Number(pid), 'SIGSTOP')
    t.teardown(() => { process.kill(Number(pid), 'SIGCONT') })
    await t.rejects(database.read(one), { name: 'DATABASE_SLOW' })
  }
  for (let count = 0; count < 3; count++) await stop()
  t.strictSame(await database.read(one), [['1']])
})

t.test('a given-up connection leaves its place only when the server has ended the session', async (t) => {
  const database = openDatabase({ url: primaryUrl, statementTimeoutMs: 500, applicationName: 'held' })
  t.teardown(database.close)
  const slow = { name: 'slow', text: 'select pg_backend_pid() from pg_sleep(0.1)' }
  const rows = await Promise.all([database.readLong(slow), database.readLong(slow)])
  const stopped = rows.map(([row]) => Number(row?.[0]))
  t.not(stopped[0], stopped[1])
  // Both sessions of this kind stop, as with a frozen disk.
  for (const pid of stopped) process.kill(pid, 'SIGSTOP')
  const resume = () => { for (const pid of stopped.splice(0)) process.kill(pid, 'SIGCONT') }
  t.teardown(resume)
  const late =
    ['no result in time', 'no result in time', 'no free connection', 'all earlier connections hang']
  const reasons = await Promise.all(late.map((_, index) =>
    (index === 3 ? delay(2000) : Promise.resolve()).then(() => database.readLong(one))
      .catch(({ name, cause }) => name === 'DATABASE_SLOW' && cause.message)))
  t.strictSame(reasons, late)
  // The stopped sessions have not received `one`. The session that asks for them runs another statement.
  const third = "select from pg_stat_activity where application_name = 'held' and query = $1"
  t.strictSame(await sql(primaryUrl, third, [one.text]), [], 'no third session is open')
  resume()
  while (!await database.readLong(one).catch(() => false)) await delay(10)
  t.equal(maxConnections, 21, 'as in docs/operating.md')
})

t.test('while commits wait for a lost standby, sessions stay within the limit', async (t) => {
  const names = 'alter system set synchronous_standby_names ='
  const reload = () => sql(primaryUrl, 'select pg_reload_conf()')
  await sql(primaryUrl, `${names} 'nobody'`)
  await reload()
  const { as, database } = await startApp(t, { DATABASE_URL: primaryUrl, STATEMENT_TIMEOUT: '500ms' })
  // The service cannot store a token now.
  const headers = { authorization: alice.authorization }
  const bob = { ...await as('bob').catch(() => alice), headers }
  const pids = new Set<unknown>()
  const sessions = async () => {
    const rows = await sql(primaryUrl,
      "select pid from pg_stat_activity where application_name = 'plant-store'")
    for (const { pid } of rows) pids.add(pid)
    return rows.length
  }
  const statuses: number[] = []
  const waiting = "select from pg_stat_activity where wait_event = 'SyncRep'"
  for (let id = 100; id < 140; id++) {
    bob.create({ id, name: 'Ivy' }).then(({ statusCode }) => { statuses.push(statusCode) }, t.error)
    await delay(100)
    t.ok(await sessions() <= 2 * maxConnections, 'both apps of this test together')
  }
  t.ok((await sql(primaryUrl, waiting)).length > 0)
  t.ok(pids.size < 60, `${pids.size} sessions`)
  await sql(primaryUrl, `${names} 'standby'`)
  await reload()
  while (statuses.length < 40) await delay(10)
  while ((await bob.create({ id: 99, name: 'Ivy' })).statusCode === 503) await delay(10)
  t.equal(database.pending().write_batch, 0)
  const stored = await sql(primaryUrl,
    "select id from plants where owner = 'alice' and id between 100 and 139")
  t.ok(stored.length >= statuses.filter((status) => status === 200).length)
  await sql(primaryUrl, 'delete from plants where id >= 99')
})

t.test('a server of another system is refused, with the way out', async (t) => {
  const primary = await openProxy(t, primaryUrl)
  const other = await openProxy(t, serverUrl)
  const hosts = [primary, other].map(({ url }) => new URL(url).host)
  const role = `other_${process.pid}`
  const createRole = `create role ${role} login password 'secret'`
  for (const server of [primaryUrl, serverUrl]) await sql(server, createRole)
  t.teardown(() => sql(serverUrl, `drop role ${role}`))
  other.set('closed')
  const url = `postgres://${role}:secret@${hosts.join()}/postgres`
  const database = openDatabase({ url, statementTimeoutMs: 1000 })
  t.teardown(database.close)
  const system = { name: 'system', text: 'select system_identifier from pg_control_system()' }
  const first = await database.read(system)
  other.set('open')
  primary.set('closed')
  primary.cut()
  let cause: AggregateError | undefined
  const isOther = ({ message }: Error) => /belongs to another database system: restart/.test(message)
  while (!cause?.errors?.some(isOther)) {
    await database.read(system).then((rows) => t.strictSame(rows, first), (error) => { cause = error.cause })
    await delay(10)
  }
  primary.set('open')
  while (!await database.read(system).then((rows) => t.strictSame(rows, first), () => false)) await delay(10)
})

t.test('after a promotion the service uses the promoted server', async (t) => {
  await createUntilStored(3)
  await pair.stopPrimary()
  await pair.promote()
  await createUntilStored(4)
  t.strictSame((await alice.list()).json(), [{ name: 'Fern' }, { name: 'Moss' }, { name: 'Moss' }])
  while ((await app.inject('/readyz')).statusCode !== 200) await delay(10)
})
