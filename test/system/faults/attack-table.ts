import { setTimeout as delay } from 'node:timers/promises'
import { createToken } from '../../../src/access/token-format.ts'
import { burst, flood, hold, type Target } from './flood.ts'

/** `query` runs SQL on a new connection. `session` runs SQL on one connection that stays open. */
type Database = Record<'query' | 'session', (sql: string) => Promise<unknown>>

export interface Attack {
  name: string
  /** The mechanism of the service that limits the cost of the attack. */
  limitedBy: string
  connections: number
  /** How many users attack, 1 by default. */
  users?: number
  /** A query for plants (id, name, tag). The test stores these plants for each attacking user. */
  plants?: string
  /** Turns on metrics and traces in the service. The trace collector never responds. */
  observed?: boolean
  settings?: Record<string, string>
  /** How many other users send requests during the attack, 5 by default. */
  others?: number
  otherNameLength?: number
  /** Before it stops the service, the test turns on debug logging and stops reading the log. */
  stallsLog?: boolean
  setup?: (database: Database) => Promise<unknown>
  /** Runs during the attack. Must end after `over` is aborted. */
  beside?: (database: Database, over: AbortSignal) => Promise<unknown>
  start: (target: Target) => unknown
}

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

function sendColons (target: Target, token?: string): unknown {
  const body = `{"id"${':'.repeat(target.bodyLimit - 8000)}}`
  return flood(target, () => create(body, token))
}

function sendPartialBodies (target: Target): void {
  const body = Buffer.from(`{"id":7,"name":"${'x'.repeat(target.bodyLimit - 18)}"`)
  const headers = `Content-Type: application/json\r\nContent-Length: ${body.length + 1}\r\n\r\n`
  hold(target, (token) => [head('POST /plants', token) + headers, body])
}

const listPlants = (target: Target, query = '') => flood(target, () => ({ path: `/plants${query}` }))
const listOnceInEightSeconds = (target: Target) =>
  burst(target, (token) => `${head('GET /plants?limit=500', token)}Connection: close\r\n\r\n`, 8000)
const sendEscapedKeys = (target: Target, perSecond?: number) =>
  flood(target, () => create(escapedKeys), perSecond === undefined ? {} : { perSecond })
const askMetrics = (target: Target, times: number) =>
  hold(target, (token) => [get('/metrics', token).repeat(times)], target.metrics)

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

/** `npm run test:faults -- --row` selects an attack by its position in this list, counted from 1. */
export const attacks: Attack[] = [
  {
    name: 'the script of /docs 17 times, unread',
    connections: 1000,
    limitedBy: 'one response per connection at a time',
    start: (target) => hold(target, (token) => [get('/docs/scalar.js', token).repeat(17)])
  },
  {
    name: 'heads, as many as fit into one read',
    connections: 1000,
    limitedBy: '16 pipelined requests',
    start: (target) => hold(target, (token) => [get('/livez', token).repeat(1800)])
  },
  {
    name: 'bodies without a token',
    connections: 100,
    limitedBy: 'limiter of work in a tick',
    start: (target) => sendColons(target, 'x')
  },
  { name: 'bodies of colons', connections: 100, limitedBy: 'body limit', start: sendColons },
  { name: 'large creates', connections: 20, limitedBy: 'memory budget', start: createLargePlants },
  { name: 'large creates', connections: 100, limitedBy: 'memory budget', start: createLargePlants },
  {
    name: 'large lists',
    connections: 100,
    limitedBy: '64 KiB in a page, memory budget',
    plants: largePlants,
    start: listPlants
  },
  {
    name: 'large lists',
    connections: 900,
    limitedBy: '64 KiB in a page, memory budget',
    plants: largePlants,
    start: listPlants
  },
  {
    name: 'three long lists each, unread',
    connections: 100,
    limitedBy: 'memory budget',
    plants: longList,
    start: (target) => hold(target, (token) => [get('/plants', token).repeat(3)])
  },
  { name: 'bodies one byte short', connections: 1500, limitedBy: 'memory budget', start: sendPartialBodies },
  {
    name: 'unknown tokens',
    connections: 4000,
    limitedBy: 'queue of unauthenticated requests',
    start: (target) => flood(target, () => ({ token: createToken() }))
  },
  {
    name: 'malformed tokens',
    connections: 100,
    limitedBy: 'limit of log lines',
    start: (target) => flood(target, () => ({ token: 'x' }))
  },
  {
    name: 'lists of 500 plants of 1 KiB',
    connections: 100,
    limitedBy: '100 plants and 64 KiB in a first page',
    plants: fullPage('\'n\''),
    start: (target) => listPlants(target, '?limit=500')
  },
  {
    name: 'lists of 500 plants of control characters',
    connections: 900,
    limitedBy: '64 KiB of JSON in a page',
    plants: fullPage('chr(1)'),
    start: (target) => listPlants(target, '?limit=500')
  },
  {
    name: 'lists of control characters at once, every 8 s',
    connections: 100,
    limitedBy: '64 KiB of JSON in a page',
    plants: fullPage('chr(1)'),
    start: listOnceInEightSeconds
  },
  {
    name: 'bodies one byte short, one per user',
    connections: 2000,
    users: 2000,
    limitedBy: 'memory budget',
    start: sendPartialBodies
  },
  {
    name: 'a stalled list per user',
    connections: 4000,
    users: 4000,
    limitedBy: 'memory budget',
    setup: ({ query }) => query(compressed),
    plants: stalledList,
    start: (target) => hold(target, (token) => [get('/plants', token)])
  },
  {
    name: 'lists while column types change',
    connections: 20,
    limitedBy: 'stale statements are prepared again',
    plants: fullPage('\'n\''),
    beside: changeTypes,
    start: (target) => listPlants(target, '?limit=5')
  },
  {
    name: 'small bodies of escaped keys, 480 a second',
    connections: 195,
    limitedBy: '100 values in a body',
    start: (target) => sendEscapedKeys(target, 480)
  },
  {
    name: 'small bodies of escaped keys',
    connections: 900,
    limitedBy: '100 values in a body',
    start: (target) => sendEscapedKeys(target)
  },
  {
    name: '1,700 requests for metrics in one packet',
    connections: 1,
    limitedBy: 'one response per connection at a time',
    observed: true,
    start: (target) => askMetrics(target, 1700)
  },
  {
    name: '100 requests for metrics each, unread',
    connections: 200,
    limitedBy: '50 connections for metrics',
    observed: true,
    start: (target) => askMetrics(target, 100)
  },
  {
    name: 'lists over 500,000 deleted plants',
    connections: 1,
    limitedBy: 'a user with slow statements runs alone',
    setup: leaveDeadRows,
    start: listPlants
  },
  {
    name: 'bodies of colons, others create 20,000 characters',
    connections: 100,
    otherNameLength: 20_000,
    limitedBy: 'body limit',
    start: sendColons
  },
  {
    name: 'probes, then a stalled reader of the log',
    connections: 100,
    stallsLog: true,
    limitedBy: 'every close has a deadline',
    start: (target) => flood(target, () => ({ path: '/livez' }))
  },
  {
    name: 'malformed heads at once',
    connections: 3000,
    limitedBy: 'queue of unauthenticated requests',
    start: (target) => burst(target, () => 'GET / HTTP/1.1\r\nbad header\r\n\r\n', 1000)
  },
  {
    name: 'lists at ten times the rate limit',
    connections: 20,
    others: 20,
    limitedBy: 'USER_RATE',
    settings: { USER_RATE: '200/s' },
    start: (target) => flood(target, () => ({}), { perSecond: 2000 })
  }
]
