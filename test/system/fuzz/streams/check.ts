// Checks a property of random values, and reports a failure.
import fc from 'fast-check'
import type { RawResponse } from '../../../support/raw.ts'
import type { Segment } from './render.ts'
import type { Stream } from './stream.ts'

/** `path` repeats a run that failed. */
export interface Options { seed: number, count: number, path?: string | undefined }

/** How long fast-check may look for a simpler value that also fails. */
const shrinkMs = 60_000

/**
 * Calls `run` with the examples and with `count` random values, in several workers at the same time. After a
 * failure, only its worker goes on. Returns a report of each failure.
 */
export async function check<Value> (
  { seed, count, path }: Options, workers: number, values: fc.Arbitrary<Value>, examples: Value[],
  run: (value: Value, worker: number) => Promise<void>
): Promise<string[]> {
  let failed: { worker: number, at: number } | undefined
  const results = await Promise.all(Array.from({ length: path === undefined ? workers : 1 }, (_, worker) => {
    const property = fc.asyncProperty(fc.noBias(values), async (value) => {
      // A run that does nothing passes, so fast-check ends soon.
      if (failed && (failed.worker !== worker || performance.now() > failed.at + shrinkMs)) return
      await run(value, worker).catch((error) => {
        failed ??= { worker, at: performance.now() }
        if (failed.worker === worker) throw error
      })
    })
    return fc.check(property, {
      seed: seed + worker,
      numRuns: examples.length + Math.ceil(count / workers),
      examples: examples.map((value): [Value] => [value]),
      ...path !== undefined && { path, endOnFailure: true }
    })
  }))
  return results.filter(({ failed }) => failed).map((result) =>
    `--seed ${result.seed} --path ${result.counterexamplePath}\n${(result.errorInstance as Error).message}`)
}

/** Describes what a client sent and received. */
export function describe (
  stream: Stream, segments: Segment[], token: string, responses: RawResponse[] = []
): string {
  const all = segments.map(({ bytes, pause }) => `  ${shorten(bytes, token)}  ${pause}`)
  return [
    `Sent by a client that reads ${stream.reader}:`,
    ...all.length > 40 ? [...all.slice(0, 20), '  …', ...all.slice(-20)] : all,
    `Then ${stream.endPause}, ${stream.end}. Received:`,
    ...responses.map(({ status, headers, body }) =>
      `  ${status} ${headers.connection ?? ''} ${JSON.stringify(body.slice(0, 200))}`)
  ].join('\n')
}

const shorten = (bytes: Buffer, token: string) =>
  JSON.stringify(bytes.toString('latin1').replaceAll(token, '@token'))
    .replaceAll(/(.{1,8}?)\1{9,}/g, (all, part) => `[${all.length / part.length} × ${part}]`).slice(0, 2000)
