// Predicts the response to a request, and the plants after it.
import { METHODS } from 'node:http'
import type { RawResponse } from '../../../support/raw.ts'
import { examplePaths } from '../../../support/routes.ts'
import { checkError, expectOnly } from '../checks.ts'
import { create, list, remove, type Plants, type Verdict } from '../oracle.ts'
import { elementsOf, endsConnection, type Request } from './parse.ts'

/** `check` throws unless a response fits. `plants` are the plants after a response that fits. */
export interface Outcome { check: (response: RawResponse) => void, plants: Plants }

/** Bodies of responses that fill the socket buffers: a list of another user, and files by their path. */
export interface LargeResponses { listToken: string, list: string, files: Record<string, string> }

export type Predictor = ReturnType<typeof createPredictor>

/** `token` is the token of the user who has the plants. */
export function createPredictor (token: string, large: LargeResponses) {
  /** Returns the possible outcomes of a complete request. */
  function outcomesOf (request: Request, plants: Plants): Outcome[] {
    const failed = { check: checkErrorOf(request), plants }
    const changed = new Map(plants)
    const verdict = mustFail(request) ? undefined : verdictOf(request, token, changed, large)
    if (verdict === undefined) return [failed]
    const expected = { check: (response: RawResponse) => check(response, verdict, request), plants: changed }
    return hasOddity(request) ? [expected, failed] : [expected]
  }

  return {
    outcomesOf,

    /** Returns the possible outcomes of a request that must not run, because its body is not complete. */
    outcomesOfHead: (request: Request, plants: Plants): Outcome[] => [
      { check: checkErrorOf(request), plants },
      ...['GET', 'HEAD'].includes(request.method) ? outcomesOf(request, plants) : []
    ]
  }
}

/** Returns whether the response must have `Connection: close`, may have it, or must not have it. */
export function closeRuleOf (request: Request): 'must' | 'may' | 'no' {
  if (endsConnection(request)) return 'must'
  const { method, version, headers, trailers } = request
  const mayClose = mustFail(request) || hasOddity(request) ||
    version !== '1.1' || !METHODS.includes(method) || headers.some(([name]) => name === 'expect') ||
    // Node's parser also obeys these fields in a trailer.
    trailers.some(([name]) => name === 'connection' || name === 'upgrade')
  return mayClose ? 'may' : 'no'
}

const checkErrorOf = ({ method }: Request) => (response: RawResponse) => {
  if (method !== 'HEAD' || response.body !== '') checkError(response)
  else if (response.status < 400) throw new Error(`not an error: ${response.status}`)
}

function check (response: RawResponse, verdict: Verdict | string, { method }: Request): void {
  if (typeof verdict === 'string') {
    const { status, body } = response
    if (status === 200 && body === (method === 'HEAD' ? '' : verdict)) return
    throw new Error(`expected ${verdict.length} characters, got ${status} and ${body.length} characters`)
  }
  // The response to HEAD has no body, so the status of an error must suffice.
  if (method !== 'HEAD') expectOnly([response], verdict)
  else {
    expectOnly([response], 'number' in verdict
      ? { status: Math.floor(verdict.number / 100) }
      : { ...verdict, body: undefined })
  }
}

const count = ({ headers }: Request, wanted: string) => headers.filter(([name]) => name === wanted).length
const valueOf = ({ headers }: Request, wanted: string) => headers.find(([name]) => name === wanted)?.[1]

const mustFail = (request: Request) => request.hasBadFraming || !/^1\.[01]$/.test(request.version) ||
  (request.version === '1.1' && (count(request, 'host') !== 1 ||
    elementsOf(request.headers, 'expect').some((element) => element !== '100-continue')))

/** Returns whether the service may reject the request for a reason that this model does not know. */
function hasOddity (request: Request): boolean {
  const { method, target, isChunked, body } = request
  const once = ['host', 'authorization', 'content-type', 'expect']
  const targetForm = method === 'CONNECT' ? /^[\w.]+:\d+$/ : /^(\*|\/[\w/?&=.-]*[^/])$/
  return once.some((name) => count(request, name) > 1) || count(request, 'content-encoding') > 0 ||
    !/^[\w.]*$/.test(valueOf(request, 'host') ?? '') || !targetForm.test(target) ||
    (method === 'DELETE' && (body.length > 0 || isChunked || count(request, 'content-type') > 0))
}

/** Returns the response of a request without faults: an error, a success, or the text of a large body. */
function verdictOf (
  request: Request, token: string, plants: Plants, large: LargeResponses
): Verdict | string | undefined {
  const { method, target, isChunked, body } = request
  if (method === 'CONNECT') return { number: 50101 }
  // The error is 501 or 400: the service recognizes an unknown method only if it arrives in one segment.
  if (!METHODS.includes(method)) return undefined
  const [path = '', query = ''] = target.split(/\?(.*)/s)
  const route = path.replace(/^\/plants\/[^/]+$/, '/plants/1')
  const allow = large.files[route] === undefined ? examplePaths[route] : 'GET, HEAD'
  if (allow === undefined) return { number: 40401 }
  if (!allow.split(', ').includes(method)) return { number: 40501, allow }
  if (route === '/livez') return { status: 200, body: { status: 'ok' } }
  if (!route.startsWith('/plants')) return large.files[route]
  const authorization = valueOf(request, 'authorization')
  if (authorization === `Bearer ${large.listToken}`) {
    return request.version === '1.0' ? { number: 40018 } : large.list
  }
  if (authorization !== `Bearer ${token}`) return undefined
  if (method === 'DELETE') return remove(plants, path.slice('/plants/'.length), query)
  if (method !== 'POST') return list(plants, query)
  const contentType = valueOf(request, 'content-type')
  const contentEncoding = valueOf(request, 'content-encoding')
  return create(plants, { contentType, contentEncoding, isChunked, body, query })
}
