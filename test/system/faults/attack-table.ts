import { randomBytes } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { createToken } from '../../../src/access/tokens.ts'
import { settings } from '../../../src/config.ts'
import { openSession, sql } from '../../support/database.ts'
import type { Scope } from '../../support/program.ts'
import { burst, flood, hold, type Target } from './flood.ts'

interface Options {
  /** How many users attack (1 by default), and how many others send requests (5 by default). */
  users?: number
  others?: number
  /** A query for plants (id, name, tag). The test stores these plants for each attacking user. */
  plants?: string
  /** Turns on metrics and traces in the service. The trace collector never responds. */
  observed?: boolean
  /** Whether the service accepts JWTs. */
  hasJwts?: boolean
  /** Why the attack cannot be sent through a proxy. */
  onlyDirect?: string
  settings?: Record<string, string>
  otherNameLength?: number
  /** Before it stops the service, the test turns on debug logging and stops reading the log. */
  stallsLog?: boolean
  setup?: (databaseUrl: string, scope: Scope) => Promise<unknown>
  /** Runs during the attack. Must end after `over` is aborted. */
  beside?: (databaseUrl: string, over: AbortSignal) => Promise<unknown>
}

const head = (line: string, token: string) =>
  `${line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n`
const get = (path: string, token: string) => `${head(`GET ${path}`, token)}\r\n`
const post = (token: string, length: number) =>
  `${head('POST /plants', token)}Content-Type: application/json\r\nContent-Length: ${length}\r\n`
const create = (body: string, token?: string) => ({ method: 'POST', body, ...token && { token } })

// Plants for a list of 1 MB.
const largePlants = 'select id, repeat(\'n\', 130000), null from generate_series(1, 8) id'
// Plants for a list that is larger than the socket buffers.
const longList = `select id, repeat('n', 512), repeat('t', 512) from generate_series(1, 20000) id
  union all select id, repeat('n', 130000), null from generate_series(20001, 20080) id`
const fullPage = (letter: string) =>
  ({ plants: `select id, repeat(${letter}, 512), repeat(${letter}, 512) from generate_series(1, 500) id` })
// Plants for a list of 5 MB of JSON, more than the buffers of a connection hold. The table `large` holds the
// compressed name, because PostgreSQL would compress a name from `repeat` again for each plant.
const stalledList = 'select id, large.name, null from generate_series(1, 40) id, large'
const compressed = 'create table large as select repeat(chr(1), 21000) as name'

const bodyLimit = Number(settings.BODY_LIMIT.initial)
const largeName = 'n'.repeat(bodyLimit - 8000)
const colons = `{"id"${':'.repeat(bodyLimit - 8000)}}`
// The fraction makes the service parse the body with a reviver, which visits each value.
const manyNumbers = `{"x":[1.5${',1'.repeat(bodyLimit / 2 - 10)}]}`
const partialBody = Buffer.from(`{"id":7,"name":"${'x'.repeat(bodyLimit - 18)}"`)
const largestBodyLimit = 131_072
// The service reads and parses the whole body, and rejects the id.
const invalid = (length: number) => JSON.stringify({ id: 'x', name: 'n'.repeat(length - 30) })
const [invalidBody, largestBody] = [invalid(bodyLimit), invalid(largestBodyLimit)]
let nextId = 1000

const createLargePlants = (target: Target) =>
  flood(target, () => create(JSON.stringify({ id: nextId++, name: largeName })))
const sendColons = (token?: string) => (target: Target) => flood(target, () => create(colons, token))
const sendLargestBodies = (target: Target) => flood(target, () => create(largestBody))
const sendPartialBodies = (target: Target) =>
  hold(target, (token) => [`${post(token, partialBody.length + 1)}\r\n`, partialBody])
const getAgain = (path: string, perSecond?: number) => (target: Target) =>
  flood(target, () => ({ path }), perSecond)
const listOnceInEightSeconds = (target: Target) =>
  burst(target, (token) => `${head('GET /plants?limit=500', token)}Connection: close\r\n\r\n`, 8000)
const sendMalformedHeads = (target: Target) =>
  burst(target, () => 'GET / HTTP/1.1\r\nbad header\r\n\r\n', 1000)
const sendBodiesAtOnce = (target: Target) =>
  burst(target, (token) => `${post(token, invalidBody.length)}Connection: close\r\n\r\n${invalidBody}`, 1000,
    (token) => get('/plants?limit=0', token))
const sendNumbers = (perSecond?: number) => (target: Target) =>
  flood(target, () => create(manyNumbers), perSecond)
const getUnread = (path: string, times: number, to: 'address' | 'metrics' = 'address') => (target: Target) =>
  hold({ ...target, address: target[to] }, (token) => [get(path, token).repeat(times)])
const sendTokens = (create: () => string) => (target: Target) => flood(target, () => ({ token: create() }))

/** Sends a valid token once on each connection, so the service has authenticated all connections. */
function sendInvalidTokens (target: Target): unknown {
  const forged = () => `${target.jwt?.slice(0, -20)}${randomBytes(15).toString('base64url')}`
  const invalid = [createToken, forged, () => 'x']
  return flood(target, (sent) => sent === 0 ? {} : { token: invalid[sent % 3]?.() as string })
}

/** Changes the types of two columns once a second. Prepared statements that return them become stale. */
async function changeTypes (databaseUrl: string, over: AbortSignal): Promise<void> {
  const change = (type: string) => sql(databaseUrl, `alter table tokens alter column label type ${type};
    alter table plants alter column owner type ${type} collate "C"`)
  for (let length = 500; !over.aborted; length++) {
    await change(`varchar(${length})`)
    await delay(1000)
  }
  await change('text')
}

/** Deletes 500,000 plants. An open transaction keeps VACUUM from removing the dead rows. */
async function leaveDeadRows (databaseUrl: string, scope: Scope): Promise<void> {
  await openSession(scope, databaseUrl, 'begin isolation level repeatable read; select from plants')
  await sql(databaseUrl, `insert into plants (owner, id, name)
    select 'mallory 0', id, 'n' from generate_series(1, 500000) id`)
  await sql(databaseUrl, 'delete from plants where owner = \'mallory 0\'')
}

const budget = 'memory budget'
const size = 'body limit'
const json = '64 KiB of JSON in a page'
const pipelined = 'one response per connection at a time'
const noProxy = { observed: true, onlyDirect: 'no proxy before METRICS_PORT' }

/** `limitedBy` is the mechanism of the service that limits the cost of the attack. */
type Row = [
  name: string, connections: number, limitedBy: string, start: (target: Target) => unknown, options?: Options
]
const rows: Row[] = [
  ['the script of /docs 17 times, unread', 1000, pipelined, getUnread('/docs/scalar.js', 17)],
  ['heads, as many as fit into one read', 1000, '100 ignored requests', getUnread('/livez', 1800)],
  ['bodies without a token', 100, size, sendColons('x')],
  ['bodies of colons', 100, size, sendColons()],
  ['large creates', 20, size, createLargePlants],
  ['large creates', 100, size, createLargePlants],
  ['large lists', 100, '64 KiB in a page, memory budget', getAgain('/plants'), { plants: largePlants }],
  ['large lists', 900, '64 KiB in a page, memory budget', getAgain('/plants'), { plants: largePlants }],
  ['three long lists each, unread', 100, budget, getUnread('/plants', 3), { plants: longList }],
  ['bodies one byte short', 1500, size, sendPartialBodies],
  ['unknown tokens', 4000, 'queue of look-ups', sendTokens(createToken)],
  ['malformed tokens', 100, 'limit of log lines', sendTokens(() => 'x')],
  ['lists of 500 plants of 1 KiB', 100, '100 plants and 64 KiB in a first page',
    getAgain('/plants?limit=500'), fullPage('\'n\'')],
  ['lists of 500 plants of control characters', 900, json, getAgain('/plants?limit=500'), fullPage('chr(1)')],
  ['lists of control characters at once, every 8 s', 100, json, listOnceInEightSeconds, fullPage('chr(1)')],
  ['bodies one byte short, one per user', 2000, size, sendPartialBodies, { users: 2000 }],
  ['a stalled list per user', 4000, budget, getUnread('/plants', 1),
    { users: 4000, setup: (url) => sql(url, compressed), plants: stalledList }],
  ['lists while column types change', 20, 'stale statements are prepared again',
    getAgain('/plants?limit=5'), { ...fullPage('\'n\''), beside: changeTypes }],
  ['bodies of 8,000 numbers, 480 a second', 195, size, sendNumbers(480)],
  ['bodies of 8,000 numbers', 900, size, sendNumbers()],
  ['1,700 requests for metrics in one packet', 1, pipelined, getUnread('/metrics', 1700, 'metrics'), noProxy],
  ['100 requests for metrics each, unread', 200, '50 connections for metrics',
    getUnread('/metrics', 100, 'metrics'), noProxy],
  ['lists over 500,000 deleted plants', 1, 'a user with slow statements runs alone',
    getAgain('/plants'), { setup: leaveDeadRows }],
  ['bodies of colons, others create 15,000 characters', 100, size,
    sendColons(), { otherNameLength: 15_000 }],
  ['probes, then a stalled reader of the log', 100, 'every close has a deadline',
    getAgain('/livez'), { stallsLog: true }],
  ['malformed heads at once', 3000, 'one response per connection', sendMalformedHeads,
    { onlyDirect: 'the proxies reject malformed heads' }],
  ['lists at ten times the rate limit', 20, 'USER_RATE', getAgain('/plants', 2000),
    { others: 20, settings: { USER_RATE: '200/s' } }],
  ['unknown, forged and malformed tokens after a valid one', 200, 'queue of look-ups', sendInvalidTokens,
    { hasJwts: true }],
  ['bodies of 16 KiB at once, after a list', 1000, size, sendBodiesAtOnce],
  ['bodies of 128 KiB, others create 15,000 characters', 100, size, sendLargestBodies,
    { settings: { BODY_LIMIT: String(largestBodyLimit) }, otherNameLength: 15_000 }]
]

export type Attack = typeof attacks[number]

export const attacks = rows.map(([name, connections, limitedBy, start, options], index) =>
  ({ title: `${index + 1} ${name}, ${connections} connections`, connections, limitedBy, start, ...options }))
