// `expectOnly` compares a response of the service with the prediction of oracle.ts. There is no prediction
// for streams of mutated requests: `explain` checks that the responses fit the stored plants.
import { isDeepStrictEqual } from 'node:util'
// This import fills the catalogue with the errors of all domains.
import '../../../src/app.ts'
import { catalogue } from '../../../src/errors.ts'
import type { RawResponse } from '../../support/raw.ts'
import { readInteger, type Plants, type Verdict } from './oracle.ts'

const statuses = new Set([200, 204, 400, 401, 404, 405, 408, 414, 417, 431, 501])
const numbers = new Set(catalogue.keys())

/** Throws unless the only response matches `verdict`. Returns the response's error number or status. */
export function expectOnly (responses: RawResponse[], verdict: Verdict): string[] {
  const [response] = responses
  if (responses.length !== 1 || response === undefined) throw new Error(`${responses.length} responses`)
  const { status, headers, body } = response
  if ('number' in verdict) {
    checkError(response)
    if (JSON.parse(body).error !== verdict.number) throw new Error(`expected ${verdict.number}, got ${body}`)
    return [String(verdict.number)]
  }
  const expected = verdict.body === undefined ? '' : JSON.stringify(verdict.body)
  if (status !== verdict.status || body !== expected) {
    throw new Error(`expected ${verdict.status} ${expected}, got ${status} ${body}`)
  }
  if (headers.link !== verdict.link) throw new Error(`expected ${verdict.link}, got ${headers.link}`)
  return [String(status)]
}

function checkError ({ status, headers, body }: RawResponse): void {
  const { error, message, ...rest } = JSON.parse(body)
  if (!statuses.has(status) || !numbers.has(error) || Math.floor(error / 100) !== status ||
    typeof message !== 'string' || message === '' || Object.keys(rest).length > 0 ||
    headers['content-type'] !== 'application/json' || headers['cache-control'] !== 'no-store' ||
    !('date' in headers) || (status === 405) !== ('allow' in headers) ||
    (status === 401) !== ('www-authenticate' in headers)) {
    throw new Error(`not an error as declared: ${status} ${JSON.stringify(headers)} ${body}`)
  }
}

/** Throws if the responses to `bytes` do not explain the changes of plants from `before` to `after`. */
export function explain (bytes: Buffer, responses: RawResponse[], before: Plants, after: Plants): void {
  const text = bytes.toString('latin1')
  const finals = responses.filter(({ status }) => status !== 100)
  // The service closes a connection without a response if a body has too many pieces.
  const hasManyChunks = [...text.matchAll(/^[\da-f]+\r$/gim)].length > 100
  if (finals.length === 0 && /[^\r\n]/.test(text) && !hasManyChunks) throw new Error('no response')
  if (finals.length < responses.length && !/expect/i.test(text)) {
    throw new Error('an unexpected interim response')
  }
  const last = finals.findIndex(({ headers }) => headers.connection === 'close')
  if (last !== -1 && last !== finals.length - 1) {
    throw new Error('a response after one with Connection: close')
  }

  const created: string[] = []
  const listed: string[] = []
  let deleted = 0
  for (const response of finals) {
    if (response.status === 204) deleted++
    else if (response.status !== 200) checkError(response)
    else {
      const body = JSON.parse(response.body)
      if (Array.isArray(body)) listed.push(...body.map((plant) => JSON.stringify(plant)))
      else if ('name' in body) created.push(JSON.stringify(body))
      else if (body.status !== 'ok' && !('openapi' in body)) {
        throw new Error(`an unexpected success: ${response.body}`)
      }
    }
  }
  const known = new Set([
    ...created, ...[...before.values(), ...after.values()].map((plant) => JSON.stringify(plant))
  ])
  for (const plant of listed) if (!known.has(plant)) throw new Error(`no request created ${plant}`)
  if (after.size - before.size !== created.length - deleted) {
    throw new Error(
      `${created.length} created and ${deleted} deleted took ${before.size} plants to ${after.size}`
    )
  }
  const values = new Set([...text.matchAll(/-?\d+(\.\d+)?([eE][-+]?\d{1,6})?/g)].map(([source]) =>
    source.length < 10_000 ? readInteger(source) : undefined))
  const paths = new Set([...text.matchAll(/\/plants\/([^ ?]*)/g)].map(([, id]) => id))
  for (const [id, plant] of after) {
    if (isDeepStrictEqual(before.get(id), plant)) continue
    if (!created.includes(JSON.stringify(plant))) throw new Error(`${id} was created without a response`)
    if (!values.has(id)) throw new Error(`${id} was created without a request`)
  }
  for (const id of before.keys()) {
    if (!after.has(id) && !paths.has(String(id)) && ![...paths].some((path) => path?.includes('%'))) {
      throw new Error(`${id} was deleted without a request`)
    }
  }
}
