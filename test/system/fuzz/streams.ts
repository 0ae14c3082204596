// Tests HTTP connections with random streams of requests, cut into segments at random places. A strict parser
// of the same bytes predicts the responses and the stored plants. fast-check simplifies a stream that fails.
import { setTimeout as delay } from 'node:timers/promises'
import fc from 'fast-check'
import { openSession, sql } from '../../support/database.ts'
import { unmeasured, type Program, type Scope } from '../../support/program.ts'
import { complaintsOf } from './checks.ts'
import { streamsWith } from './streams/arbitrary.ts'
import { check, describe, type Options } from './streams/check.ts'
import { judge, textOf, type Observation } from './streams/judge.ts'
import { knownShutdowns, knownStreams } from './streams/known.ts'
import { play } from './streams/play.ts'
import { createPredictor, type LargeResponses } from './streams/predict.ts'
import { render } from './streams/render.ts'
import { createLarge, openStore, type Store, type User } from './streams/store.ts'
import { lockMs, seeds, type Shutdown, type Stream } from './streams/stream.ts'

interface Instance { url: string, store: Store, service: Program, large: LargeResponses }

/** Runs `count` streams on one instance of the service. Returns a report of each failure. */
export async function testStreams (scope: Scope, url: string, options: Options): Promise<string[]> {
  const service = await unmeasured.serve(scope, { DATABASE_URL: url })
  const instance = { url, store: openStore(scope, url), service, large: await createLarge(url, service) }
  let late = 0
  const streams = streamsWith({ large: 2, slowReaders: 2, longPauses: 1, maxPauseMs: 30 })
  const failures = await check(options, 16, streams, knownStreams, async (stream) => {
    if (!await runStream(instance, await instance.store.nextUser(), stream)) late++
  })
  return [
    ...failures.map((failure) => `npm run fuzz -- --streams 1 ${failure}`),
    ...complaintsOf(service).filter((complaint) => !isAboutDatabase(complaint)),
    ...complaintsOfLate(late, options)
  ]
}

const complaintsOfLate = (late: number, { count }: Options) =>
  late > 1 + count / 10 ? [`the machine is too slow: it had no time for ${late} of ${count} runs`] : []

const shutdowns: fc.Arbitrary<Shutdown> = fc.record({
  streams: fc.array(streamsWith({ large: 8, slowReaders: 8, longPauses: 4, maxPauseMs: 150 }),
    { maxLength: 16, size: 'max' }),
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
  const larges: LargeResponses[] = []
  let late = 0
  const failures = await check(options, urls.length, shutdowns, knownShutdowns, async (shutdown, worker) => {
    await using stack = new AsyncDisposableStack()
    const round: Scope = { teardown: (work) => stack.defer(async () => { await work() }) }
    const [url, store] = [urls[worker] as string, stores[worker] as Store]
    const service = await unmeasured.serve(round, { DATABASE_URL: url, DRAIN_DELAY: '30ms' })
    const large = larges[worker] ??= await createLarge(url, service)
    // The first requests of a process are slow.
    for (let times = 0; times < 20; times++) await (await fetch(`${service.address}/livez`)).text()
    const isJudged = await runShutdown(round, { url, store, service, large }, shutdown).catch((error) => {
      const { signal, signalMs, lock } = shutdown
      throw new Error(`${signal} after ${signalMs} ms, lock: ${lock}: ${error.message}`, { cause: error })
    })
    if (!isJudged) late++
  })
  return [
    ...failures.map((failure) => `npm run fuzz -- --shutdowns 1 ${failure}`),
    ...complaintsOfLate(late, options)
  ]
}

const serviceSessions = `select from pg_stat_activity
  where application_name = 'plant-store' and datname = current_database()`

/** The service replaces database connections that wait for a lock, or for a busy machine. */
const isAboutDatabase = (complaint: string) => /unresponsive|no connection within/.test(complaint)

/** Returns false without a judgment if the machine is so busy that the service reaches its deadline. */
async function runShutdown (
  scope: Scope, instance: Instance, { streams, signal, signalMs, lock }: Shutdown
): Promise<boolean> {
  const { url, store, service } = instance
  const users = await Promise.all(streams.map(() => store.nextUser()))
  const session = lock && await openSession(scope, url, `begin; lock table plants in ${lock} mode`)
  const ended = service.exited.then(async ([code]) => {
    if (code !== 0) throw new Error(`exit code ${code}`)
    // A statement may outlive the service.
    while ((await sql(url, serviceSessions)).length > 0) await delay(10)
  })
  const runs = streams.map((stream, index) => runStream(instance, users[index] as User, stream, ended))
  const settled = Promise.allSettled([...runs, ended])
  await delay(signalMs)
  service.child.kill(signal)
  if (session) await delay(lockMs).then(() => session.query('rollback'))
  const results = await settled
  await ended
  if (service.log.some(({ msg }) => String(msg).startsWith('the shutdown cuts'))) return false
  for (const result of results) if (result.status === 'rejected') throw result.reason
  const complaints = complaintsOf(service).filter((complaint) => !isAboutDatabase(complaint))
  if (complaints.length > 0) throw new Error(complaints.join('\n'))
  return true
}

/**
 * Throws if the service breaks a rule. Returns false without a judgment if the stream took too long.
 * `shutdown` resolves when the service and its sessions have ended.
 */
async function runStream (
  { store, service, large }: Instance, user: User, stream: Stream, shutdown?: Promise<void>
): Promise<boolean> {
  const segments = render(stream, user.token, large.listToken)
  let seen: Observation | undefined
  try {
    seen = await play(service.address, segments, stream, shutdown)
    if (shutdown === undefined && seen.isLate) return false
    await shutdown
    // Requests of a client that has left may still run.
    if (seen.hasLeft || seen.isCutByConnect) await delay(10)
    const { answered, cut } = judge(seen, createPredictor(user.token, large), seeds)
    const stored = textOf(await store.readPlants(user.name))
    const expected = [...answered, ...cut].map(textOf)
    if (!expected.includes(stored)) {
      throw new Error(`stored:\n${stored}\nexpected:\n${expected.join('\nor:\n')}`)
    }
    return true
  } catch (error) {
    const story = describe(stream, segments, user.token, seen?.responses)
    throw new Error(`${(error as Error).message}\n${story}`, { cause: error })
  }
}
