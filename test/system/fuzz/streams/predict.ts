// Predicts the response to a request, and the plants after it.
import { METHODS } from 'node:http'
import type { RawResponse } from '../../../support/raw.ts'
import { examplePaths } from '../../../support/routes.ts'
import { checkError, expectOnly } from '../checks.ts'
import { create, list, remove, type Plants, type Verdict } from '../oracle.ts'
import { elementsOf, endsConnection, type Request } from './parse.ts'

/** `check` throws unless a response fits. `plants` are the plants after a response that fits. */
export interface Outcome { check: (response: RawResponse) => void, plants: Plants }

/** Responses that exceed the socket buffers: the list of another user, and the script of the page at /docs. */
export interface LargeResponses { listToken: string, list: string, script: string }

/** Methods that Node's parser accepts for RTSP. */
export const rtspMethods = [
  'ANNOUNCE', 'DESCRIBE', 'FLUSH', 'GET_PARAMETER', 'PAUSE', 'PLAY', 'RECORD', 'REDIRECT', 'SETUP',
  'SET_PARAMETER', 'TEARDOWN'
]

/** Returns the possible outcomes. `token` is the token of the user who has the `plants`. */
export function outcomesOf (
  request: Request, token: string, plants: Plants, large: LargeResponses
): Outcome[] {
  const failed = { check: checkErrorOf(request), plants }
  if (mustFail(request)) return [failed]
  const changed = new Map(plants)
  const verdict = verdictOf(request, token, changed, large)
  if (verdict === undefined) return [failed]
  const expected = { check: (response: RawResponse) => check(response, verdict, request), plants: changed }
  return hasOddity(request) ? [expected, failed] : [expected]
}

/** Returns the possible outcomes of a request with an incomplete or malformed body, which must not run. */
export const outcomesOfHead = (request: Request, token: string, plants: Plants, large: LargeResponses) => [
  { check: checkErrorOf(request), plants },
  ...isRead(request) ? outcomesOf(request, token, plants, large) : []
]

/** Returns whether the response must have `Connection: close`, may have it, or must not have it. */
export function closeRuleOf (request: Request): 'must' | 'may' | 'no' {
  if (endsConnection(request)) return 'must'
  const { method, version, headers, trailers } = request
  const isOdd = version !== '1.1' || !METHODS.includes(method) || mustFail(request) || hasOddity(request) ||
    [...headers, ...trailers].some(([name]) => name === 'expect') ||
    // Node's parser also obeys these fields in a trailer.
    trailers.some(([name]) => name === 'connection' || name === 'upgrade')
  return isOdd ? 'may' : 'no'
}

const isRead = ({ method }: Request) => method === 'GET' || method === 'HEAD'

const checkErrorOf = ({ method }: Request) => (response: RawResponse) => {
  if (method !== 'HEAD' || response.body !== '') checkError(response)
  else if (response.status < 400) throw new Error(`not an error: ${response.status}`)
}

function check (response: RawResponse, verdict: Verdict | string, { method }: Request): void {
  if (typeof verdict === 'string') {
    if (response.status === 200 && response.body === (method === 'HEAD' ? '' : verdict)) return
    throw new Error(`expected ${verdict.length} bytes, got ${response.status} ${response.body.length} bytes`)
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
const hasOddity = (request: Request) => {
  const { method, target, headers, isChunked, body } = request
  const once = ['host', 'authorization', 'content-type', 'expect']
  return once.some((name) => count(request, name) > 1) || count(request, 'content-encoding') > 0 ||
    !/^[\w.]*$/.test(valueOf(request, 'host') ?? '') || !/^(\*|\/[\w/?&=.-]*[^/])$/.test(target) ||
    (method === 'DELETE' && (body.length > 0 || isChunked || headers.some(([name]) => name === 'content-type')))
}

/** Returns the response of a request without faults: an error, a success, or the text of a large body. */
function verdictOf (
  request: Request, token: string, plants: Plants, large: LargeResponses
): Verdict | string | undefined {
  const { method, target, isChunked, body } = request
  if (method === 'CONNECT') return { number: 50101 }
  // The error is 501 or 400: the service recognizes an unknown method only if the method arrives in one segment.
  if (!METHODS.includes(method)) return undefined
  const [path = '', query = ''] = target.split(/\?(.*)/s)
  const route = path.replace(/^\/plants\/[^/]+$/, '/plants/1')
  const allow = route === '/docs/scalar.js' ? 'GET, HEAD' : examplePaths[route]
  if (allow === undefined) return { number: 40401 }
  if (!allow.split(', ').includes(method)) return { number: 40501, allow }
  if (route === '/livez') return { status: 200, body: { status: 'ok' } }
  if (route === '/docs/scalar.js') return large.script
  if (!route.startsWith('/plants')) return undefined
  const authorization = valueOf(request, 'authorization')
  if (authorization === `Bearer ${large.listToken}`) {
    return request.version === '1.0' ? { number: 40018 } : large.list
  }
  if (authorization !== `Bearer ${token}`) return undefined
  if (method === 'DELETE') return remove(plants, path.slice('/plants/'.length), query)
  if (method !== 'POST') return list(plants, query)
  const [contentType, contentEncoding] = [valueOf(request, 'content-type'), valueOf(request, 'content-encoding')]
  return create(plants, { contentType, contentEncoding, isChunked, body, query })
}
