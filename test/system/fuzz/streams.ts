// Tests HTTP connections with random streams of requests, cut into segments at random places. fast-check
// simplifies streams that fail.
import { setTimeout as delay } from 'node:timers/promises'
import fc from 'fast-check'
import pg from 'pg'
import { openSession, sql } from '../../support/database.ts'
import { unmeasured, type Program, type Scope } from '../../support/program.ts'
import { complaintsOf } from './checks.ts'
import { itemsOf, streamsWith, type Stream } from './streams/items.ts'
import { judge } from './streams/judge.ts'
import { play } from './streams/play.ts'
import { createLarge, createSeeded, readPlants } from './streams/store.ts'

/** `path` repeats a run that failed. */
export interface Options { seed: number, count: number, path?: string | undefined }

interface Instance { url: string, pool: pg.Pool, service: Program, large: { token: string, list: string } }

function openPool (scope: Scope, url: string): pg.Pool {
  const pool = new pg.Pool({ connectionString: url, max: 4 }).on('error', () => {})
  scope.teardown(() => pool.end())
  return pool
}

/** How many streams run at the same time. */
const together = { maxLength: 16, size: 'max' } as const
/** How long a lock on the plants lasts after the signal. */
const lockMs = 3000

/** Calls `run` with `count` random values. Returns a report of the failure. */
async function check<Value> (
  { seed, count: numRuns, path }: Options, values: fc.Arbitrary<Value>, run: (value: Value) => Promise<void>
): Promise<string[]> {
  const repeated = path !== undefined && { path, endOnFailure: true }
  const result = await fc.check(fc.asyncProperty(fc.noBias(values), run), { seed, numRuns, ...repeated })
  if (!result.failed) return []
  const { message } = result.errorInstance as Error
  const simplest = JSON.stringify(result.counterexample)
  return [`--seed ${seed} --path ${result.counterexamplePath}\n${message}\n${simplest}`]
}

/** Runs `count` groups of streams on one instance of the service. Returns a report of each failure. */
export async function testStreams (scope: Scope, url: string, options: Options): Promise<string[]> {
  const service = await unmeasured.serve(scope, { DATABASE_URL: url })
  const instance = { url, pool: openPool(scope, url), service, large: await createLarge(url, service) }
  const failures = await check(options, fc.array(streamsWith(2, 30), together), async (streams) => {
    await runStreams(instance, streams)
  })
  return [...failures.map((failure) => `npm run fuzz -- --streams 1 ${failure}`), ...unexpectedLines(service)]
}

/** Streams on an instance of the service that ends during them. */
interface Shutdown { streams: Stream[], signal: NodeJS.Signals, signalMs: number, lock: string | undefined }

const shutdowns: fc.Arbitrary<Shutdown> = fc.record({
  streams: fc.array(streamsWith(8, 150), together),
  signal: fc.constantFrom('SIGTERM', 'SIGINT'),
  signalMs: fc.nat(150),
  lock: fc.constantFrom(undefined, undefined, 'share', 'access exclusive')
})

/** Starts and stops `count` instances of the service, each during some streams. */
export async function testShutdowns (scope: Scope, url: string, options: Options): Promise<string[]> {
  const pool = openPool(scope, url)
  let large: Instance['large'] | undefined
  const failures = await check(options, shutdowns, async (shutdown) => {
    await using stack = new AsyncDisposableStack()
    const round: Scope = { teardown: (work) => stack.defer(async () => { await work() }) }
    const service = await unmeasured.serve(round, { DATABASE_URL: url, DRAIN_DELAY: '30ms' })
    large ??= await createLarge(url, service)
    // The first requests of a process are slow.
    for (let times = 0; times < 20; times++) await (await fetch(`${service.address}/livez`)).text()
    await runShutdown(round, { url, pool, service, large }, shutdown)
  })
  return failures.map((failure) => `npm run fuzz -- --shutdowns 1 ${failure}`)
}

const serviceSessions = `select from pg_stat_activity
  where application_name = 'plant-store' and datname = current_database()`

/** The service replaces database connections that wait for a lock, or for a busy machine. */
const unexpectedLines = (service: Program) =>
  complaintsOf(service).filter((complaint) => !/unresponsive|no connection within/.test(complaint))

/** Judges nothing if the machine is so busy that the service reaches its deadline. */
async function runShutdown (
  scope: Scope, instance: Instance, { streams, signal, signalMs, lock }: Shutdown
): Promise<void> {
  const { url, service } = instance
  const session = lock && await openSession(scope, url, `begin; lock table plants in ${lock} mode`)
  const ended = service.exited.then(async ([code]) => {
    if (code !== 0) throw new Error(`exit code ${code}`)
    // A statement may outlive the service.
    while ((await sql(url, serviceSessions)).length > 0) await delay(10)
  })
  const settled = Promise.allSettled([runStreams(instance, streams, ended), ended])
  await delay(signalMs)
  service.child.kill(signal)
  if (session) await delay(lockMs).then(() => session.query('rollback'))
  const results = await settled
  if (service.log.some(({ msg }) => String(msg).startsWith('the shutdown cuts'))) return
  for (const result of results) if (result.status === 'rejected') throw result.reason
  const lines = unexpectedLines(service)
  if (lines.length > 0) throw new Error(lines.join('\n'))
}

/** Throws if the service breaks a rule. `shutdown` resolves when the service and its sessions have ended. */
async function runStreams (instance: Instance, streams: Stream[], shutdown?: Promise<void>): Promise<void> {
  const users = await createSeeded(instance.url, streams.length)
  const results = await Promise.allSettled(users.map((user, index) =>
    runStream(instance, user, streams[index] as Stream, shutdown)))
  for (const result of results) if (result.status === 'rejected') throw result.reason
}

async function runStream (
  { pool, service, large }: Instance, user: { name: string, token: string }, stream: Stream,
  shutdown: Promise<void> | undefined
): Promise<void> {
  const items = itemsOf(stream, user.token, large.token)
  const seen = await play(service.address, items, stream, shutdown)
  await shutdown
  // Requests of a client that has left may still run.
  if (shutdown === undefined && (seen.hasLeft || seen.responses.length < seen.begun)) await delay(20)
  const stored = [...await readPlants(pool, user.name)].map(([id, { name }]) => [id, name] as const)
  try {
    judge(items, seen, new Map(stored), large.list, shutdown !== undefined)
  } catch (error) {
    const received = seen.responses.map(({ status, headers }) => `${status} ${headers.connection}`).join(', ')
    throw new Error(`${(error as Error).message}\nreceived ${received}`, { cause: error })
  }
}
