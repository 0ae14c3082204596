import { randomUUID } from 'node:crypto'
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
  name: string
  response: HttpResponse
}

export interface Round {
  user: string
  sent: Sent[]
  erasure: { code: number | null, stdout: string, stderr: string }
  /** How many plants and tokens of the user there were right after the erasure, and 15 s later. */
  left: number[]
}

interface Context {
  url: string, user: string, random: Random, clients: Client[], sent: Sent[], over: boolean
}

/** At first, plants 1 to 6 exist. Operators lock plants 1 to 12, and clients create and delete them. */
const [stored, contested] = [6, 12]
/** Operators insert markers until this time after the revocation. `user erase` must find none later. */
const maxMarkerMs = 12_000

/** Adds the `application_name` of a session to a connection string. */
export const named = (url: string, session: string) =>
  `${url}?application_name=${encodeURIComponent(session)}`

/** Runs `text` in an operator's transaction, and ends the transaction at some time in the next `maxMs`. */
async function hold ({ url, user, random }: Context, maxMs: number, text: string, end = 'rollback') {
  const operator = new pg.Client(named(url, 'operator'))
  await operator.connect()
  await operator.query(`begin; set local lock_timeout = '2s'; ${text.replaceAll('USER', `'${user}'`)}`)
    .catch(ignoreLocks)
  await delay(random.below(maxMs))
  await operator.query(end)
  await operator.end()
}

/** Each of these makes requests or the erasure wait, at a moment that the seed chooses. */
const obstacles: Record<string, (context: Context) => Promise<unknown>> = {
  'locked new rows': (context) => hold(context, 18_000, `
    delete from plants where owner = USER and id between ${stored} + 1 and ${contested};
    insert into plants (owner, id, name)
    select USER, id, 'locked' from generate_series(${stored} + 1, ${contested}) id
    on conflict do nothing`),
  'locked rows': (context) =>
    hold(context, 18_000, 'select from plants where owner = USER order by id for update'),
  'a locked table': (context) => hold(context, 2000, 'lock table plants in access exclusive mode'),
  'a late commit': (context) =>
    hold(context, 25_000, "insert into plants (owner, id, name) values (USER, 99, 'late')", 'commit'),
  'a full queue': ({ random, clients }) => {
    const client = random.pick(clients)
    return Promise.all(Array.from({ length: 300 }, () => client.list()))
  }
}

/** Sends requests of one user to all instances while `user erase` revokes the user's token. */
export async function runRound (
  url: string, instances: Instance[], user: string, token: string, random: Random
): Promise<Round> {
  const clients = instances.map(({ address }) => createClient(address, token))
  const sent: Sent[] = []
  const context = { url, user, random, clients, sent, over: false }
  await sql(url, `insert into plants (owner, id, name)
    select $1, id, 'stored' from generate_series(1, ${stored}::int) id`, [user])
  const names = random.shuffled(Object.keys(obstacles)).slice(0, 1 + random.below(3))
    // All rounds share the table, so few of them lock it.
    .filter((name, index) => index === 0 || name !== 'a locked table')
  const work = [
    insertMarkers(context),
    ...instances.flatMap((instance, index) => Array.from({ length: 2 }, () =>
      sendRequests(context, instance, clients[index] as Client))),
    // A late commit begins before the erasure.
    ...names.map((name) => delay(name === 'a late commit' ? 0 : random.below(3500))
      .then(() => obstacles[name]?.(context)))
  ]
  await delay(1000 + random.below(2000))

  // Clients send requests until this time.
  const watched = delay(18_000)
  const erasure = await unmeasured.run(['user', 'erase', user, '--yes'],
    { DATABASE_URL: named(url, 'erase'), TOKEN_CACHE_TTL: '0' })
  const left = await countLeft(url, user)
  const leftLater = delay(15_000).then(() => countLeft(url, user))
  await watched
  context.over = true
  await Promise.all(work)
  for (const client of clients) client.close()
  return { user, sent, erasure, left: [left, await leftLater] }
}

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
async function insertMarkers (context: Context): Promise<void> {
  const connectionString = named(context.url, 'operator')
  const operator = new pg.Client({ connectionString, statement_timeout: 1000 })
  await operator.connect()
  for (let id = 10_000; !context.over; id++) {
    await operator.query(`insert into plants (owner, id, name) select $1, $2::bigint, 'marker ' || $2::bigint
      where exists (select from tokens where username = $1
        and coalesce(revoked_at > clock_timestamp() - interval '${maxMarkerMs} ms', true))`,
    [context.user, id]).catch(ignoreLocks)
    await delay(250)
  }
  await operator.end()
}

async function sendRequests (context: Context, instance: Instance, client: Client): Promise<void> {
  const { user, random, sent } = context
  async function send (kind: Sent['kind']): Promise<HttpResponse> {
    const id = random.chance(0.5) ? 1 + random.below(contested) : 100 + random.below(30)
    const name = `${user} ${randomUUID()}`
    const response = kind === 'create'
      ? await client.create({ id, name })
      : await (kind === 'delete' ? client.delete(id) : client.list())
    sent.push({ instance, kind, name, response })
    return response
  }
  while (!context.over) {
    const kind = random.pick(['create', 'delete', 'list'] as const)
    // Requests of one tick share a statement. Retries do without.
    const all = Array.from({ length: random.chance(0.2) ? 2 * contested : 1 }, () => send(kind))
    const { status } = await Promise.race(all)
    await delay(status === 401 ? 1000 : random.below(300))
    if (random.chance(0.7)) await Promise.all(all)
  }
}
