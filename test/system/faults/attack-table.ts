import { setTimeout as delay } from 'node:timers/promises'
import { randomBytes } from 'node:crypto'
import { createToken } from '../../../src/access/token-format.ts'
import { burst, flood, hold, type Target } from './flood.ts'

/** `query` runs SQL on a new connection. `session` runs SQL on one connection that stays open. */
type Database = Record<'query' | 'session', (sql: string) => Promise<unknown>>

interface Options {
  /** How many users attack, 1 by default. */
  users?: number
  /** A query for plants (id, name, tag). The test stores these plants for each attacking user. */
  plants?: string
  /** Turns on metrics and traces in the service. The trace collector never responds. */
  observed?: boolean
  /** Lets the service accept JWTs of an identity provider. */
  acceptsJwts?: boolean
  /** Why the attack cannot be sent through a proxy. */
  onlyDirect?: string
  settings?: Record<string, string>
  /** How many other users send requests during the attack, 5 by default. */
  others?: number
  otherNameLength?: number
  /** Before it stops the service, the test turns on debug logging and stops reading the log. */
  stallsLog?: boolean
  setup?: (database: Database) => Promise<unknown>
  /** Runs during the attack. Must end after `over` is aborted. */
  beside?: (database: Database, over: AbortSignal) => Promise<unknown>
}

export interface Attack extends Options {
  name: string
  connections: number
  /** The mechanism of the service that limits the cost of the attack. */
  limitedBy: string
  start: (target: Target) => unknown
}

const attack = (
  name: string, connections: number, limitedBy: string, start: Attack['start'], options: Options = {}
): Attack => ({ name, connections, limitedBy, start, ...options })

const head = (line: string, token: string) =>
  `${line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n`
const get = (path: string, token: string) => `${head(`GET ${path}`, token)}\r\n`

// Plants for a list of 1 MB.
const largePlants = 'select id, repeat(\'n\', 130000), null from generate_series(1, 8) id'
// Plants for a list that is larger than the socket buffers.
const longList = `select id, repeat('n', 512), repeat('t', 512) from generate_series(1, 20000) id
  union all select id, repeat('n', 130000), null from generate_series(20001, 20080) id`
const fullPage = (character: string) =>
  `select id, repeat(${character}, 512), repeat(${character}, 512) from generate_series(1, 500) id`
// Plants for a list of 5 MB of JSON, more than the buffers of a connection hold. The table `large` holds the
// compressed name, because PostgreSQL would compress a name from `repeat` again for each plant.
const stalledList = 'select id, large.name, null from generate_series(1, 40) id, large'
const compressed = 'create table large as select repeat(chr(1), 21000) as name'

const escapedKeys = `[${Array(490).fill('{"\\u0061":1.5}').join()}]`
let nextId = 1000

const create = (body: string, token?: string) => ({ method: 'POST', body, ...token && { token } })

function createLargePlants (target: Target): unknown {
  const name = 'n'.repeat(target.bodyLimit - 8000)
  return flood(target, () => create(JSON.stringify({ id: nextId++, name })))
}

const sendColons = (token?: string) => (target: Target) => {
  const body = `{"id"${':'.repeat(target.bodyLimit - 8000)}}`
  return flood(target, () => create(body, token))
}

function sendPartialBodies (target: Target): void {
  const body = Buffer.from(`{"id":7,"name":"${'x'.repeat(target.bodyLimit - 18)}"`)
  const headers = `Content-Type: application/json\r\nContent-Length: ${body.length + 1}\r\n\r\n`
  hold(target, (token) => [head('POST /plants', token) + headers, body])
}

const listPlants = (query = '') => (target: Target) => flood(target, () => ({ path: `/plants${query}` }))
const listOnceInEightSeconds = (target: Target) =>
  burst(target, (token) => `${head('GET /plants?limit=500', token)}Connection: close\r\n\r\n`, 8000)

function sendBodiesAtOnce (target: Target): unknown {
  const body = JSON.stringify({ id: 'x', name: 'n'.repeat(60_000) })
  const headers = `Content-Type: application/json\r\nContent-Length: ${body.length}\r\nConnection: close\r\n`
  return burst(target, (token) => `${head('POST /plants', token)}${headers}\r\n${body}`, 1000,
    (token) => get('/plants?limit=0', token))
}

const sendEscapedKeys = (perSecond?: number) => (target: Target) =>
  flood(target, () => create(escapedKeys), perSecond === undefined ? {} : { perSecond })
const getUnread = (path: string, times: number) => (target: Target) =>
  hold(target, (token) => [get(path, token).repeat(times)])
const getMetricsUnread = (times: number) => (target: Target) =>
  hold(target, (token) => [get('/metrics', token).repeat(times)], target.metrics)
const sendTokens = (create: () => string) => (target: Target) => flood(target, () => ({ token: create() }))

/** Sends a valid token once on each connection, so the service has authenticated all connections. */
function sendInvalidTokens (target: Target): unknown {
  const forged = () => `${target.jwt?.slice(0, -20)}${randomBytes(15).toString('base64url')}`
  const invalid = [createToken, forged, () => 'x']
  return flood(target, (sent) => sent === 0 ? {} : { token: invalid[sent % 3]?.() as string })
}

/** Changes the types of two columns once a second. Prepared statements that return them become stale. */
async function changeTypes ({ query }: Database, over: AbortSignal): Promise<void> {
  const change = (type: string) => query(`alter table tokens alter column label type ${type};
    alter table plants alter column owner type ${type} collate "C"`)
  for (let length = 500; !over.aborted; length++) {
    await change(`varchar(${length})`)
    await delay(1000)
  }
  await change('text')
}

/** Deletes 500,000 plants. The open transaction of `session` keeps VACUUM from removing the dead rows. */
async function leaveDeadRows ({ query, session }: Database): Promise<void> {
  await session('begin isolation level repeatable read')
  await session('select from plants')
  await query(`insert into plants (owner, id, name)
    select 'mallory 0', id, 'n' from generate_series(1, 500000) id`)
  await query('delete from plants where owner = \'mallory 0\'')
}

const budget = 'memory budget'
const pages = '64 KiB in a page, memory budget'
const json = '64 KiB of JSON in a page'
const tick = 'limiter of work in a tick'
const queue = 'queue of unauthenticated requests'
const values = '100 values in a body'
const noProxy = { observed: true, onlyDirect: 'no proxy before METRICS_PORT' }

/** `npm run test:faults -- --row` selects an attack by its position in this list, counted from 1. */
export const attacks: Attack[] = [
  attack('the script of /docs 17 times, unread', 1000, 'one response per connection at a time',
    getUnread('/docs/scalar.js', 17)),
  attack('heads, as many as fit into one read', 1000, '16 pipelined requests', getUnread('/livez', 1800)),
  attack('bodies without a token', 100, tick, sendColons('x')),
  attack('bodies of colons', 100, 'body limit', sendColons()),
  attack('large creates', 20, budget, createLargePlants),
  attack('large creates', 100, budget, createLargePlants),
  attack('large lists', 100, pages, listPlants(), { plants: largePlants }),
  attack('large lists', 900, pages, listPlants(), { plants: largePlants }),
  attack('three long lists each, unread', 100, budget, getUnread('/plants', 3), { plants: longList }),
  attack('bodies one byte short', 1500, budget, sendPartialBodies),
  attack('unknown tokens', 4000, queue, sendTokens(createToken)),
  attack('malformed tokens', 100, 'limit of log lines', sendTokens(() => 'x')),
  attack('lists of 500 plants of 1 KiB', 100, '100 plants and 64 KiB in a first page',
    listPlants('?limit=500'), { plants: fullPage('\'n\'') }),
  attack('lists of 500 plants of control characters', 900, json,
    listPlants('?limit=500'), { plants: fullPage('chr(1)') }),
  attack('lists of control characters at once, every 8 s', 100, json,
    listOnceInEightSeconds, { plants: fullPage('chr(1)') }),
  attack('bodies one byte short, one per user', 2000, budget, sendPartialBodies, { users: 2000 }),
  attack('a stalled list per user', 4000, budget, getUnread('/plants', 1),
    { users: 4000, setup: ({ query }) => query(compressed), plants: stalledList }),
  attack('lists while column types change', 20, 'stale statements are prepared again',
    listPlants('?limit=5'), { plants: fullPage('\'n\''), beside: changeTypes }),
  attack('small bodies of escaped keys, 480 a second', 195, values, sendEscapedKeys(480)),
  attack('small bodies of escaped keys', 900, values, sendEscapedKeys()),
  attack('1,700 requests for metrics in one packet', 1, 'one response per connection at a time',
    getMetricsUnread(1700), noProxy),
  attack('100 requests for metrics each, unread', 200, '50 connections for metrics',
    getMetricsUnread(100), noProxy),
  attack('lists over 500,000 deleted plants', 1, 'a user with slow statements runs alone',
    listPlants(), { setup: leaveDeadRows }),
  attack('bodies of colons, others create 20,000 characters', 100, 'body limit',
    sendColons(), { otherNameLength: 20_000 }),
  attack('probes, then a stalled reader of the log', 100, 'every close has a deadline',
    (target) => flood(target, () => ({ path: '/livez' })), { stallsLog: true }),
  attack('malformed heads at once', 3000, queue,
    (target) => burst(target, () => 'GET / HTTP/1.1\r\nbad header\r\n\r\n', 1000),
    { onlyDirect: 'the proxies reject malformed heads' }),
  attack('lists at ten times the rate limit', 20, 'USER_RATE',
    (target) => flood(target, () => ({}), { perSecond: 2000 }),
    { others: 20, settings: { USER_RATE: '200/s' } }),
  attack('unknown, forged and malformed tokens after a valid one', 200, tick,
    sendInvalidTokens, { acceptsJwts: true }),
  attack('bodies of 60 KiB at once, after a list', 1000, '512 KiB of bodies in a tick', sendBodiesAtOnce)
]
