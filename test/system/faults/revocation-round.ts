import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { sql } from '../../support/database.ts'
import { unmeasured } from '../../support/program.ts'
import { createClient, type Client, type HttpResponse } from './client.ts'
import type { Random } from './random.ts'

export interface Instance { name: string, address: string, lastEffectMs: number }

export interface Sent {
  instance: Instance
  kind: 'create' | 'delete' | 'list'
  /** The name of the plant to create. Names are unique. */
  name?: string
  response: HttpResponse
  /** The time of the whole response, in ms since 1970. */
  at: number
}

export interface Round {
  user: string
  sent: Sent[]
  erasure: { code: number | null, stdout: string, stderr: string }
  /** How many plants and tokens of the user there were right after the erasure, and `laterMs` later. */
  left: number[]
}

interface Context { url: string, user: string, random: Random, clients: Client[] }

/** At first, plants 1 to 6 exist. Operators lock plants 1 to 12, and clients create and delete them. */
const [stored, contested] = [6, 12]
/** Operators insert markers until this time after the revocation. `user erase` must find none later. */
const maxMarkerMs = 12_000
const workersPerInstance = 2
const maxHoldMs = 18_000
/** How long clients send requests after the start of the erasure. */
const watchMs = 18_000
const laterMs = 15_000

/** Runs `text` in an operator's transaction. The returned function ends the transaction after `ms`. */
async function begin ({ url, user }: Context, text: string) {
  const operator = new pg.Client(url)
  await operator.connect()
  await operator.query(`set application_name = operator; begin; set local lock_timeout = '2s'; ${
    text.replaceAll('USER', `'${user}'`)}`).catch(ignoreLocks)
  return async (end: 'commit' | 'rollback', ms: number) => {
    await delay(ms)
    await operator.query(end)
    await operator.end()
  }
}

const hold = async (context: Context, maxMs: number, text: string) =>
  (await begin(context, text))('rollback', context.random.below(maxMs))

/** Each of these makes requests wait, at a moment that the seed chooses. */
const obstacles: Record<string, (context: Context) => Promise<unknown>> = {
  'locked new rows': (context) => hold(context, maxHoldMs, `
    delete from plants where owner = USER and id between ${stored} + 1 and ${contested};
    insert into plants (owner, id, name)
    select USER, id, 'locked' from generate_series(${stored} + 1, ${contested}) id
    on conflict do nothing`),

  'locked rows': (context) => hold(context, maxHoldMs,
    'select from plants where owner = USER order by id for update'),

  'a full queue': ({ random, clients }) => {
    const client = random.pick(clients)
    return Promise.all(Array.from({ length: 300 }, () => client.list()))
  },

  'a locked table': (context) => hold(context, 2000, 'lock table plants in access exclusive mode')
}
const lateCommit = 'a late commit'

/** Sends requests of one user to all instances while `user erase` revokes the user's token. */
export async function runRound (
  url: string, instances: Instance[], user: string, token: string, random: Random
): Promise<Round> {
  const clients = instances.map(({ address }) => createClient(address, token))
  const context = { url, user, random, clients }
  await sql(url, `insert into plants (owner, id, name)
    select $1, id, 'stored' from generate_series(1, ${stored}::int) id`, [user])
  const sent: Sent[] = []
  const names = random.shuffled([...Object.keys(obstacles), lateCommit]).slice(0, 1 + random.below(3))
    // All rounds share the table, so few of them lock it.
    .filter((name, index) => index === 0 || name !== 'a locked table')
  const over = new AbortController()
  const work = instances.flatMap((instance, index) => Array.from({ length: workersPerInstance }, () =>
    sendRequests(context, instance, clients[index] as Client, sent, over.signal)))
  const marking = insertMarkers(url, user, over.signal)
  const waits = names.map(async (name) => {
    await delay(random.below(3500))
    await obstacles[name]?.(context)
  })
  if (names.includes(lateCommit)) {
    const end = await begin(context, "insert into plants (owner, id, name) values (USER, 99, 'late')")
    waits.push(end('commit', 5000 + random.below(20_000)))
  }
  await delay(1000 + random.below(2000))

  const watched = delay(watchMs)
  const erasure = await unmeasured.run(['user', 'erase', user, '--yes'],
    { DATABASE_URL: named(url, 'erase'), TOKEN_CACHE_TTL: '0' })
  const left = await countLeft(url, user)
  const leftLater = delay(laterMs).then(() => countLeft(url, user))
  await watched
  over.abort()
  await Promise.all([...work, ...waits, marking])
  for (const client of clients) client.close()
  return { user, sent, erasure, left: [left, await leftLater] }
}

export const named = (url: string, session: string) =>
  `${url}?application_name=${encodeURIComponent(session)}`

async function countLeft (url: string, user: string): Promise<number> {
  const [row] = await sql(url, `select (select count(*) from plants where owner = $1) +
    (select count(*) from tokens where username = $1) as left`, [user])
  return Number(row?.left)
}

/** Ignores timeouts and deadlocks. */
function ignoreLocks (error: pg.DatabaseError): void {
  if (!/^(55P03|57014|40P01)$/.test(error.code as string)) throw error
}

/** Inserts a plant four times a second, until `maxMarkerMs` after the revocation. */
async function insertMarkers (url: string, user: string, signal: AbortSignal): Promise<void> {
  const operator = new pg.Client(url)
  await operator.connect()
  await operator.query("set application_name = operator; set statement_timeout = '1s'")
  for (let id = 10_000; !signal.aborted; id++) {
    await operator.query(`insert into plants (owner, id, name) select $1, $2::bigint, 'marker ' || $2::bigint
      where exists (select from tokens where username = $1
        and coalesce(revoked_at > clock_timestamp() - interval '${maxMarkerMs} ms', true))`,
    [user, id]).catch(ignoreLocks)
    await delay(250)
  }
  await operator.end()
}

async function sendRequests (
  context: Context, instance: Instance, client: Client, sent: Sent[], signal: AbortSignal
): Promise<void> {
  const { random } = context
  while (!signal.aborted) {
    const kind = random.pick(['create', 'delete', 'list'] as const)
    // Requests of one tick share a statement. Retries do without.
    const times = random.chance(0.2) ? 2 * contested : 1
    const all = Array.from({ length: times }, () => send(context, instance, client, sent, kind))
    const { status } = await Promise.race(all)
    await delay(status === 401 ? 1000 : random.below(300))
    if (random.chance(0.7)) await Promise.all(all)
  }
}

let plants = 0

async function send (
  { user, random }: Context, instance: Instance, client: Client, sent: Sent[], kind: Sent['kind']
): Promise<HttpResponse> {
  const number = ++plants
  const id = random.chance(0.5) ? 1 + random.below(contested) : 100 + random.below(30)
  const name = `${user} ${number}`
  const response = await {
    create: () => client.create({ id, name }),
    delete: () => client.delete(id),
    list: () => client.list()
  }[kind]()
  const at = performance.timeOrigin + response.startedAt + response.ms
  sent.push({ instance, kind, response, at, ...kind === 'create' && { name } })
  return response
}
