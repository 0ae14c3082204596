// Tests HTTP connections with random streams of requests, cut into segments at random places. fast-check
// simplifies a stream that fails.
import { setTimeout as delay } from 'node:timers/promises'
import fc from 'fast-check'
import { openSession, sql } from '../../support/database.ts'
import { unmeasured, type Program, type Scope } from '../../support/program.ts'
import { complaintsOf } from './checks.ts'
import { itemsOf, streamsWith, type Stream } from './streams/items.ts'
import { judge } from './streams/judge.ts'
import { play } from './streams/play.ts'
import { createLarge, openStore, type Store } from './streams/store.ts'

/** `path` repeats a run that failed. */
export interface Options { seed: number, count: number, path?: string | undefined }

interface Instance { url: string, store: Store, service: Program, large: { token: string, list: string } }

/** How long a lock on the plants lasts after the signal. */
const lockMs = 3000

/** Calls `run` with `count` random values, in several workers at once. Returns a report of each failure. */
async function check<Value> (
  { seed, count, path }: Options, workers: number, values: fc.Arbitrary<Value>,
  run: (value: Value, worker: number) => Promise<void>
): Promise<string[]> {
  const results = await Promise.all(Array.from({ length: path === undefined ? workers : 1 }, (_, worker) =>
    fc.check(fc.asyncProperty(fc.noBias(values), (value) => run(value, worker)), {
      seed: seed + worker,
      numRuns: Math.ceil(count / workers),
      // fast-check must also end when it looks for a simpler value that fails.
      interruptAfterTimeLimit: 600_000,
      ...path !== undefined && { path, endOnFailure: true }
    })))
  return results.filter(({ failed }) => failed).map((result) => [
    `--seed ${result.seed} --path ${result.counterexamplePath}`,
    (result.errorInstance as Error | null)?.message ?? 'interrupted',
    JSON.stringify(result.counterexample)
  ].join('\n'))
}

/** Runs `count` streams on one instance of the service. Returns a report of each failure. */
export async function testStreams (scope: Scope, url: string, options: Options): Promise<string[]> {
  const service = await unmeasured.serve(scope, { DATABASE_URL: url })
  const instance = { url, store: openStore(scope, url), service, large: await createLarge(url, service) }
  const failures = await check(options, 16, streamsWith(2, 30), (stream) => runStream(instance, stream))
  return [
    ...failures.map((failure) => `npm run fuzz -- --streams 1 ${failure}`),
    ...complaintsOf(service).filter((complaint) => !isAboutDatabase(complaint))
  ]
}

/** Streams on an instance of the service that ends during them. */
interface Shutdown { streams: Stream[], signal: NodeJS.Signals, signalMs: number, lock: string | undefined }

const shutdowns: fc.Arbitrary<Shutdown> = fc.record({
  streams: fc.array(streamsWith(8, 150), { maxLength: 16, size: 'max' }),
  signal: fc.constantFrom<NodeJS.Signals>('SIGTERM', 'SIGINT'),
  signalMs: fc.nat(150),
  lock: fc.constantFrom(undefined, undefined, 'share', 'access exclusive')
})

/**
 * Starts and stops `count` instances of the service, each during some streams. Returns a report of each
 * failure. A lock stalls a whole database, so each URL names the database of one instance at a time.
 */
export async function testShutdowns (scope: Scope, urls: string[], options: Options): Promise<string[]> {
  const stores = urls.map((url) => openStore(scope, url))
  const larges: Array<Instance['large']> = []
  const failures = await check(options, urls.length, shutdowns, async (shutdown, worker) => {
    await using stack = new AsyncDisposableStack()
    const round: Scope = { teardown: (work) => stack.defer(async () => { await work() }) }
    const [url, store] = [urls[worker] as string, stores[worker] as Store]
    const service = await unmeasured.serve(round, { DATABASE_URL: url, DRAIN_DELAY: '30ms' })
    const large = larges[worker] ??= await createLarge(url, service)
    // The first requests of a process are slow.
    for (let times = 0; times < 20; times++) await (await fetch(`${service.address}/livez`)).text()
    await runShutdown(round, { url, store, service, large }, shutdown)
  })
  return failures.map((failure) => `npm run fuzz -- --shutdowns 1 ${failure}`)
}

const serviceSessions = `select from pg_stat_activity
  where application_name = 'plant-store' and datname = current_database()`

/** The service replaces database connections that wait for a lock, or for a busy machine. */
const isAboutDatabase = (complaint: string) => /unresponsive|no connection within/.test(complaint)

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
  const settled = Promise.allSettled([...streams.map((stream) => runStream(instance, stream, ended)), ended])
  await delay(signalMs)
  service.child.kill(signal)
  if (session) await delay(lockMs).then(() => session.query('rollback'))
  const results = await settled
  await ended
  if (service.log.some(({ msg }) => String(msg).startsWith('the shutdown cuts'))) return
  for (const result of results) if (result.status === 'rejected') throw result.reason
  const complaints = complaintsOf(service).filter((complaint) => !isAboutDatabase(complaint))
  if (complaints.length > 0) throw new Error(complaints.join('\n'))
}

/** Throws if the service breaks a rule. `shutdown` resolves when the service and its sessions have ended. */
async function runStream (
  { store, service, large }: Instance, stream: Stream, shutdown?: Promise<void>
): Promise<void> {
  const user = await store.nextUser()
  const items = itemsOf(stream, user.token, large.token)
  const seen = await play(service.address, items, stream, shutdown)
  await shutdown
  // Requests of a client that has left may still run.
  if (shutdown === undefined && (seen.hasLeft || seen.responses.length < seen.begun)) await delay(20)
  try {
    judge(items, seen, await store.readNames(user.name), large.list, shutdown !== undefined)
  } catch (error) {
    const received = seen.responses.map(({ status, headers }) => `${status} ${headers.connection}`).join(', ')
    throw new Error(`${(error as Error).message}\nreceived ${received}`, { cause: error })
  }
}
