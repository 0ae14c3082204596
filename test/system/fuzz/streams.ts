// Property tests of HTTP connections. fast-check builds streams of requests, cuts them into segments, and shrinks a
// failing stream. A strict parser of the same bytes predicts the responses and the changes of the database.
import { setTimeout as delay } from 'node:timers/promises'
import { inspect } from 'node:util'
import fc from 'fast-check'
import { openSession, sql } from '../../support/database.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { render, seeds, streamsWith, type Segment, type Stream } from './streams/arbitrary.ts'
import { judge, type Observation } from './streams/judge.ts'
import { play } from './streams/play.ts'
import type { LargeResponses } from './streams/predict.ts'
import { createLarge, isSame, openStore, type User } from './streams/store.ts'

/** `path` repeats a failing run. */
export interface Options { seed: number, count: number, path?: string | undefined }

type Store = Awaited<ReturnType<typeof openStore>>

/** Runs `count` streams on one instance of the service. Returns a report of each failure. */
export async function testStreams (scope: Scope, url: string, options: Options): Promise<string[]> {
  const store = await openStore(scope, url)
  const service = await unmeasured.serve(scope, { DATABASE_URL: url })
  const large = await createLarge(url, service)
  return await check(options, 32, streamsWith(30), async (stream) => {
    const user = await store.nextUser()
    const segments = render(stream, user.token, large.listToken)
    await explained(stream, segments, user, async (note) => {
      const seen = note(await play(service.address, segments, stream))
      // Requests of a client that has left may still run.
      if (seen.hasLeft || seen.isCutByConnect) await delay(10)
      await verify(seen, user, store, large)
    })
  })
}

async function verify (seen: Observation, user: User, store: Store, large: LargeResponses): Promise<void> {
  const { answered, cut } = judge(seen, user.token, seeds, large)
  const plants = await store.readPlants(user.name)
  if ([...answered, ...cut].some((state) => isSame(state, plants))) return
  throw new Error(`${inspect(plants)} are stored, not ${inspect(answered)}, nor one of ${inspect(cut)}`)
}

/** Checks a property in several lanes at the same time. After a failure, the other lanes end. */
async function check<Value> (
  { seed, count, path }: Options, lanes: number, values: fc.Arbitrary<Value>, run: (value: Value) => Promise<void>
): Promise<string[]> {
  let failed: number | undefined
  const results = await Promise.all(Array.from({ length: path === undefined ? lanes : 1 }, (_, lane) => {
    const property = fc.asyncProperty(values, async (value) => {
      if (failed !== undefined && failed !== lane) return
      await run(value).catch((error) => {
        failed ??= lane
        if (failed === lane) throw error
      })
    })
    return fc.check(property, {
      seed: seed + lane, numRuns: Math.ceil(count / lanes), ...path !== undefined && { path, endOnFailure: true }
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
    const parts = segments.map(({ bytes, pause }) =>
      `  ${JSON.stringify(bytes.toString('latin1').replaceAll(user.token, '@token')).slice(0, 2000)}, ${pause}`)
    const responses = observed?.responses.map(({ status, headers, body }) =>
      `  ${status} ${headers.connection ?? ''} ${body.slice(0, 200)}`)
    throw new Error([
      (error as Error).message,
      `sent by a client that reads ${stream.reader}:`, ...parts,
      `then ${stream.end}, ${stream.endPause}. Received:`, ...responses ?? [], `  ${observed?.rest.slice(0, 200)}`
    ].join('\n'), { cause: error })
  }
}
