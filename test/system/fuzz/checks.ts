// `expectOnly` compares a response of the service with the prediction of oracle.ts. There is no prediction
// for streams of mutated requests: `explain` checks that the responses fit the stored plants.
import { isDeepStrictEqual } from 'node:util'
// This import fills the catalogue with the errors of all domains.
import '../../../src/app.ts'
import { catalogue } from '../../../src/errors.ts'
import type { Program } from '../../support/program.ts'
import type { RawResponse } from '../../support/raw.ts'
import { readInteger, type Plants, type Verdict } from './oracle.ts'

const errorStatuses = new Set([400, 401, 403, 404, 405, 408, 414, 417, 431, 501])

/** Throws unless the only response matches `verdict`. Returns the response's error number or status. */
export function expectOnly (responses: RawResponse[], verdict: Verdict): string[] {
  const [response] = responses
  if (responses.length !== 1 || response === undefined) throw new Error(`${responses.length} responses`)
  const { status, headers, body } = response
  const isError = 'number' in verdict
  if (isError) checkError(response)
  const expected = isError
    ? [verdict.number, verdict.allow]
    : [verdict.status, verdict.link, JSON.stringify(verdict.body) ?? '']
  const got = isError ? [JSON.parse(body).error, headers.allow] : [status, headers.link, body]
  if (!isDeepStrictEqual(got, expected)) {
    throw new Error(`expected ${expected}, got ${status} ${JSON.stringify(headers)} ${body}`)
  }
  return [String(expected[0])]
}

export function checkError ({ status, headers, body }: RawResponse): void {
  const { error, message, ...rest } = JSON.parse(body)
  const challenge = headers['www-authenticate'] ?? ''
  if (!errorStatuses.has(status) || !catalogue.has(error) || Math.floor(error / 100) !== status ||
    typeof message !== 'string' || message === '' || Object.keys(rest).length > 0 ||
    headers['content-type'] !== 'application/json' || headers['cache-control'] !== 'no-store' ||
    !('date' in headers) || (status === 405) !== ('allow' in headers) ||
    ([401, 403].includes(status) ? !challenge.startsWith('Bearer realm="plants"') : challenge !== '')) {
    throw new Error(`not an error as declared: ${status} ${JSON.stringify(headers)} ${body}`)
  }
}

/** Returns the unexpected log lines and errors of a service. */
export function complaintsOf ({ log, stderr }: Program): string[] {
  // The service warns that fsync is off on the server of `npm test`, and of a busy machine (`lagMs`).
  const unexpected =
    log.filter(({ level, off, lagMs }) => !off && !lagMs && /warn|error|fatal/.test(String(level)))
  return [
    ...unexpected.slice(0, 3).map((line) => `the service logged ${JSON.stringify(line)}`),
    ...stderr() === '' ? [] : [`the service wrote ${stderr().slice(0, 1000)}`]
  ]
}

/** Throws if the responses to `bytes` do not explain the changes of plants from `before` to `after`. */
export function explain (bytes: Buffer, responses: RawResponse[], before: Plants, after: Plants): void {
  const text = bytes.toString('latin1')
  const finals = responses.filter(({ status }) => status !== 100)
  if (finals.length === 0 && /[^\r\n]/.test(text)) throw new Error('no response')
  if (finals.length < responses.length && !/expect/i.test(text)) {
    throw new Error('an unexpected interim response')
  }
  if (finals.slice(0, -1).some(({ headers }) => headers.connection === 'close')) {
    throw new Error('a response after one with Connection: close')
  }
  for (const response of finals) if (![200, 204].includes(response.status)) checkError(response)

  const bodies = finals.filter(({ status }) => status === 200).map(({ body }) => JSON.parse(body))
  const textsOf = (plants: Iterable<unknown>) => [...plants].map((plant) => JSON.stringify(plant))
  const created = textsOf(bodies.filter((body) => 'name' in body))
  const known = new Set([...created, ...textsOf(before.values()), ...textsOf(after.values())])
  for (const body of bodies) {
    const isExpected = Array.isArray(body)
      ? textsOf(body).every((plant) => known.has(plant))
      : 'name' in body || body.status === 'ok' || 'openapi' in body
    if (!isExpected) throw new Error(`an unexpected success: ${JSON.stringify(body)}`)
  }
  const deleted = finals.filter(({ status }) => status === 204).length
  if (after.size - before.size !== created.length - deleted) {
    throw new Error(
      `${created.length} created and ${deleted} deleted took ${before.size} plants to ${after.size}`
    )
  }
  const values = new Set([...text.matchAll(/-?\d+(\.\d+)?([eE][-+]?\d{1,6})?/g)].map(([source]) =>
    source.length < 10_000 ? readInteger(source) : undefined))
  const paths = [...text.matchAll(/\/plants\/([^ ?]*)/g)].map(([, id]) => id as string)
  for (const [id, plant] of after) {
    if (isDeepStrictEqual(before.get(id), plant)) continue
    if (!created.includes(JSON.stringify(plant))) throw new Error(`${id} was created without a response`)
    if (!values.has(id)) throw new Error(`${id} was created without a request`)
  }
  for (const id of before.keys()) {
    if (!after.has(id) && !paths.some((path) => path === String(id) || path.includes('%'))) {
      throw new Error(`${id} was deleted without a request`)
    }
  }
}
