// Tests failover from a primary to its synchronous standby. Each test continues with the servers as the
// previous test has left them.
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { migrate } from '../../src/database/migrate.ts'
import { openDatabase } from '../../src/database/database.ts'
import { createConnector } from '../../src/database/connector.ts'
import { systemEvents } from '../../src/events.ts'
import { startPair } from '../system/faults/pair.ts'
import { openProxy } from '../system/faults/proxy.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'

const pair = await startPair(t)
const serverUrl = process.env.TEST_DATABASE_URL as string
const [primaryUrl, standbyUrl] = pair.urls
const { app, as } = await startApp(t, { DATABASE_URL: pair.url })
const alice = await as('alice')
const moss = { id: 2, name: 'Moss' }

/** Returns the port of the server that the service chooses. */
async function findPort (url: string): Promise<string> {
  const connection = await createConnector({ url, statementTimeoutMs: 1000 }).connect()
  connection.close()
  return portOf(`postgres://${connection.server.name}`)
}

const isReady = async () => (await app.inject('/readyz')).statusCode
const portOf = (url: string) => new URL(url).port

t.test('the server that takes writes is found, and connections to other servers are closed', async (t) => {
  t.equal(await findPort(pair.url.replace('@', '@127.0.0.1:1,')), portOf(primaryUrl))
  t.strictSame(await migrate(pair.url), [])
  t.equal((await alice.create({ id: 1, name: 'Fern' })).statusCode, 200)

  const connections = async () => (await sql(primaryUrl,
    "select from pg_stat_activity where application_name = 'found' and datname = current_database()")).length
  const late = await openProxy(t, primaryUrl)
  late.slow(50)
  const { host, port } = new URL(primaryUrl)
  const url = primaryUrl.replace(host, `localhost:${port},${host},${new URL(late.url).host}`)
  t.equal(await findPort(`${url}?application_name=found`), port)
  while (late.connections().now > 0 || await connections() > 0) await delay(10)
})

t.test('a server that takes no writes is rejected unless target_session_attrs is any', async (t) => {
  const unavailable = { name: 'DATABASE_UNAVAILABLE' }
  for (const url of [standbyUrl, `${standbyUrl}?target_session_attrs=primary`]) {
    await t.rejects(findPort(url), { message: 'the server takes no writes' })
  }
  await t.rejects(migrate(standbyUrl.replace('@', '@127.0.0.1:1,')), unavailable)
  t.equal(await findPort(`${standbyUrl}?target_session_attrs=any`), portOf(standbyUrl))

  const database = openDatabase({ url: `${standbyUrl}?target_session_attrs=any`, statementTimeoutMs: 1000 })
  t.teardown(database.close)
  const backend = { name: 'pid', text: 'select pg_backend_pid()' }
  const before = await database.write(backend)
  await t.rejects(database.write({ name: 'write', text: 'delete from plants' }), unavailable)
  t.notSame(await database.write(backend), before, 'a new connection, which may find another server')
})

t.test('after a promotion beside a running primary, the promoted server is used, even if slow', async (t) => {
  t.strictSame((await alice.list()).json(), [{ name: 'Fern' }])
  // These concurrent writes make the service open two connections for writes.
  await Promise.all([alice.create({ id: 4, name: 'Oak' }), alice.delete(4), alice.delete(5)])
  await alice.delete(4)
  await pair.promote()
  // The old primary waits for a standby to confirm this commit, so the create stays pending.
  const lost = alice.create(moss).then()
  const waiting = "select from pg_stat_activity where wait_event = 'SyncRep'"
  while ((await sql(primaryUrl, waiting)).length === 0) await delay(10)
  t.equal((await alice.create({ id: 3, name: 'Ivy' })).statusCode, 200, 'a later request succeeds at once')
  t.strictSame((await alice.list()).json(), [{ name: 'Fern' }, { name: 'Ivy' }])
  t.equal((await lost).statusCode, 503)
  t.same(await sql(standbyUrl, 'select id from plants order by id'), [{ id: '1' }, { id: '3' }])
  t.equal(await isReady(), 200)

  const slow = await openProxy(t, standbyUrl)
  // A first choice of a server waits for all servers.
  slow.slow(100)
  const both = primaryUrl.replace('@', `@${new URL(slow.url).host},`)
  t.equal(await findPort(both), portOf(slow.url))
})

t.test('while no server takes writes, requests are rejected and the service is not ready', async (t) => {
  t.equal((await alice.list()).statusCode, 200, 'the token is cached, and the connection is open')
  await sql(standbyUrl, 'alter system set default_transaction_read_only = on')
  await sql(standbyUrl, 'select pg_reload_conf()')
  // PostgreSQL reports the new setting only together with a result. Until then, lists succeed.
  while ((await alice.list()).statusCode !== 503) await delay(10)
  t.equal((await alice.create(moss)).statusCode, 503)
  t.equal(await isReady(), 503)
  await sql(standbyUrl, 'alter system reset default_transaction_read_only')
  await sql(standbyUrl, 'select pg_reload_conf()')
  while (await isReady() !== 200) await delay(10)
  // The service waits 100 ms after a failed attempt to connect. During this time creates may fail.
  while ((await alice.create(moss)).statusCode !== 200) await delay(10)
  t.strictSame((await alice.list()).json(), [{ name: 'Fern' }, { name: 'Moss' }, { name: 'Ivy' }])
})

t.test('of two systems, all instances use the first one, until no server of it responds', async (t) => {
  const role = `rebuilt_${process.pid}`
  const createRole = `create role ${role} login password 'secret'`
  for (const server of [standbyUrl, serverUrl]) await sql(server, createRole)
  t.teardown(() => sql(serverUrl, `drop role ${role}`))
  const promoted = await openProxy(t, standbyUrl)
  // This server is another system, such as a restored dump. Its timeline is an earlier one.
  const rebuilt = await openProxy(t, serverUrl)
  const [first, second] = [promoted, rebuilt].map(({ url }) => new URL(url).host) as [string, string]
  const url = `postgres://${role}:secret@${first},${second}/postgres`
  const events: Array<{ event: string, server: string }> = []
  const listen = (event: typeof events[0]) => { events.push(event) }
  systemEvents.subscribe(listen)
  t.teardown(() => systemEvents.unsubscribe(listen))
  const instances = [0, 1].map(() => openDatabase({ url, statementTimeoutMs: 1000 }))
  for (const { close } of instances) t.teardown(close)

  const whichSystem = { name: 'system', text: 'select system_identifier from pg_control_system()' }
  /** Reads the system on several connections of each instance. */
  const systems = async () => {
    const reads = instances.flatMap(({ read, readLong, readHedged, write }) =>
      [read, readLong, readHedged, write, write].map((run) => run(whichSystem).catch(() => undefined)))
    return [...new Set((await Promise.all(reads)).map((rows) => rows?.[0]?.[0]))]
  }
  const systemOf = async (url: string) => [(await sql(url, whichSystem.text))[0]?.system_identifier]
  const [original, other] = [await systemOf(standbyUrl), await systemOf(serverUrl)]
  t.notSame(original, other)
  promoted.slow(100)
  t.strictSame(await systems(), original, 'the order of the servers decides, even if the first one is slow')
  promoted.slow(0)
  t.strictSame(events.splice(0), Array(2).fill({ event: 'ignored', server: second }), 'once an instance')

  promoted.set('closed')
  t.strictSame(await systems(), original, 'its connections are still open')
  promoted.cut()
  const since = performance.now()
  let seen = await systems()
  while (seen.includes(undefined)) {
    t.notOk(seen.some((system) => system === original[0]))
    await delay(10)
    seen = await systems()
  }
  t.strictSame(seen, other)
  t.ok(performance.now() - since > 2900, 'a restart of the first server must not change the system')
  t.strictSame(events.splice(0), Array(2).fill({ event: 'changed', server: second }))
  promoted.set('open')
  promoted.forgetMost()
  rebuilt.cut()
  while ((seen = await systems()).includes(undefined)) await delay(10)
  t.strictSame(seen, other, 'the system in use responds')

  // A managed server may not let the role read the timeline.
  await sql(standbyUrl, 'revoke execute on function pg_control_system from public')
  const single = url.replace(/,[^/]*/, '')
  t.equal(await findPort(single), portOf(promoted.url), 'for one server, the timeline is not read')
})
