// Property tests of HTTP connections. fast-check builds streams of requests, cuts them into segments, and shrinks a
// stream that breaks a rule. A strict parser of the same bytes predicts the responses and the stored plants.
import { setTimeout as delay } from 'node:timers/promises'
import fc from 'fast-check'
import { openSession, sql } from '../../support/database.ts'
import { unmeasured, type Program, type Scope } from '../../support/program.ts'
import { complaintsOf } from './checks.ts'
import { render, seeds, streamsWith, type Segment, type Stream } from './streams/arbitrary.ts'
import { judge, textOf, type Observation } from './streams/judge.ts'
import { play } from './streams/play.ts'
import type { LargeResponses } from './streams/predict.ts'
import { createLarge, openStore, type Store, type User } from './streams/store.ts'

/** `path` repeats a run that failed. */
export interface Options { seed: number, count: number, path?: string | undefined }

/** Runs `count` streams on one instance of the service. Returns a report of each failure. */
export async function testStreams (scope: Scope, url: string, options: Options): Promise<string[]> {
  const store = openStore(scope, url)
  const service = await unmeasured.serve(scope, { DATABASE_URL: url })
  const large = await createLarge(url, service)
  const failures = await check(options, 32, fc.noBias(streamsWith({ large: 2, slowReaders: 2, longPauses: 1, maxPauseMs: 30 })), async (stream) => {
    const user = await store.nextUser()
    const segments = render(stream, user.token, large.listToken)
    await explained(stream, segments, user, async (note) => {
      const seen = note(await play(service.address, segments, stream))
      // Requests of a client that has left may still run.
      if (seen.hasLeft || seen.isCutByConnect) await delay(10)
      await verify(seen, user, store, large)
    })
  })
  return [...failures, ...complaintsOf(service)]
}

interface Shutdown {
  streams: Stream[]
  signal: NodeJS.Signals
  /** The time from the start of the streams to the signal. */
  signalMs: number
  /** The mode of a lock on the plants until `stallMs` after the signal. */
  lock: 'share' | 'access exclusive' | undefined
}

const stallMs = 3000
const shutdowns: fc.Arbitrary<Shutdown> = fc.noBias(fc.record({
  streams: fc.array(streamsWith({ large: 8, slowReaders: 8, longPauses: 4, maxPauseMs: 150 }), { maxLength: 16, size: 'max' }),
  signal: fc.constantFrom<NodeJS.Signals>('SIGTERM', 'SIGINT'),
  signalMs: fc.nat(150),
  lock: fc.constantFrom(undefined, undefined, 'share', 'access exclusive')
}))

interface Instance { url: string, store: Store, service: Program, large: LargeResponses }

/**
 * Starts and stops `count` instances of the service, each during some streams. Returns a report of each failure. A
 * lock stalls a whole database, so each of the `urls` names the database of one instance at a time.
 */
export async function testShutdowns (scope: Scope, urls: string[], options: Options): Promise<string[]> {
  const stores = urls.map((url) => openStore(scope, url))
  const larges: LargeResponses[] = []
  return await check(options, urls.length, shutdowns, async (shutdown, lane) => {
    await using stack = new AsyncDisposableStack()
    const round: Scope = { teardown: (work) => stack.defer(async () => { await work() }) }
    const [url, store] = [urls[lane] as string, stores[lane] as Store]
    const service = await unmeasured.serve(round, { DATABASE_URL: url, DRAIN_DELAY: '30ms' })
    const large = larges[lane] ??= await createLarge(url, service)
    // The first requests of a process are slow.
    for (let times = 0; times < 20; times++) await (await fetch(`${service.address}/livez`)).text()
    await runShutdown(round, { url, store, service, large }, shutdown).catch((error) => {
      const { signal, signalMs, lock } = shutdown
      throw new Error(`${signal} after ${signalMs} ms, lock ${lock}: ${error.message}`, { cause: error })
    })
  })
}

const statements = `select from pg_stat_activity
  where application_name = 'plant-store' and datname = current_database()`

async function runShutdown (
  scope: Scope, { url, store, service, large }: Instance, { streams, signal, signalMs, lock }: Shutdown
): Promise<void> {
  const users = await Promise.all(streams.map(() => store.nextUser()))
  const session = lock && await openSession(scope, url, `begin; lock table plants in ${lock} mode`)
  const ended = service.exited.then(async ([code]) => {
    if (code !== 0) throw new Error(`exit code ${code}`)
    // A statement may outlive the service.
    while ((await sql(url, statements)).length > 0) await delay(10)
  })
  const runs = streams.map(async (stream, index) => {
    const user = users[index] as User
    const segments = render(stream, user.token, large.listToken)
    await explained(stream, segments, user, async (note) => {
      const seen = note(await play(service.address, segments, stream, service.exited))
      await ended
      await verify(seen, user, store, large)
    })
  })
  const settled = Promise.allSettled([...runs, ended])
  await delay(signalMs)
  service.child.kill(signal)
  if (session) await delay(stallMs).then(() => session.query('rollback'))
  for (const result of await settled) if (result.status === 'rejected') throw result.reason
  // The service replaces database connections that wait for the lock.
  const complaints = complaintsOf(service).filter((complaint) => !lock || !complaint.includes('unresponsive'))
  if (complaints.length > 0) throw new Error(complaints.join('\n'))
}

async function verify (seen: Observation, user: User, store: Store, large: LargeResponses): Promise<void> {
  const { answered, cut } = judge(seen, user.token, seeds, large)
  const plants = await store.readPlants(user.name)
  const expected = new Set([...answered, ...cut].map(textOf))
  if (expected.has(textOf(plants))) return
  throw new Error(`stored:\n${textOf(plants)}\nexpected:\n${[...expected].join('\nor:\n')}`)
}

/** Checks a property in several lanes at the same time. After a failure, only the lane of the failure goes on. */
async function check<Value> (
  { seed, count, path }: Options, lanes: number, values: fc.Arbitrary<Value>,
  run: (value: Value, lane: number) => Promise<void>
): Promise<string[]> {
  let failed: { lane: number, at: number } | undefined
  const results = await Promise.all(Array.from({ length: path === undefined ? lanes : 1 }, (_, lane) => {
    const property = fc.asyncProperty(values, async (value) => {
      // A run that does nothing passes. So the other lanes, and after a minute the search for a smaller value, end.
      if (failed && (failed.lane !== lane || performance.now() > failed.at + 60_000)) return
      await run(value, lane).catch((error) => {
        if (process.env.SKIP && new RegExp(process.env.SKIP).test(error.message)) return console.log('skipped')
        if (process.env.ONLY && !new RegExp(process.env.ONLY).test(error.message.split('\n')[0])) { console.log(error.message.split('\n')[0]); return }
        failed ??= { lane, at: performance.now() }
        if (failed.lane === lane) throw error
      })
    })
    return fc.check(property, {
      seed: seed + lane,
      numRuns: Math.ceil(count / lanes),
      ...path !== undefined && { path, endOnFailure: true }
    })
  }))
  return results.filter(({ failed }) => failed).map((result) =>
    `--seed ${result.seed} --path ${result.counterexamplePath}\n${(result.errorInstance as Error).message}`)
}

/** Adds the stream and the responses to an error. */
async function explained (
  stream: Stream, segments: Segment[], user: User, run: (note: (seen: Observation) => Observation) => Promise<void>
): Promise<void> {
  let observed: Observation | undefined
  try {
    await run((seen) => observed = seen)
  } catch (error) {
    const all = segments.map(({ bytes, pause }) => `  ${shorten(bytes, user.token)}  ${pause}`)
    const parts = all.length > 40 ? [...all.slice(0, 20), '  …', ...all.slice(-20)] : all
    const responses = observed?.responses.map(({ status, headers, body }) =>
      `  ${status} ${headers.connection ?? ''} ${body.slice(0, 200)}`)
    throw new Error([
      (error as Error).message, `Sent by a client that reads ${stream.reader}:`, ...parts,
      `Then ${stream.endPause}, ${stream.end}. Received:`, ...responses ?? []
    ].join('\n'), { cause: error })
  }
}

const shorten = (bytes: Buffer, token: string) => JSON.stringify(bytes.toString('latin1').replaceAll(token, '@token'))
  .replaceAll(/(.{1,8}?)\1{9,}/g, (all, part) => `[${all.length / part.length} × ${part}]`).slice(0, 2000)
