// Compares the responses to a stream with the requests that parse.ts finds in the same bytes.
import type { RawResponse } from '../../../support/raw.ts'
import { checkError } from '../checks.ts'
import type { Plants } from '../oracle.ts'
import { elementsOf, parseRequests, type Parsed, type Request, type Tail } from './parse.ts'
import { closeRuleOf, type Outcome, type Predictor } from './predict.ts'

export interface Observation {
  sent: Buffer
  /** Interim and final responses. */
  responses: RawResponse[]
  /** Whether the connection ended in the middle of a response. */
  isMidway: boolean
  /** Whether the client closed or reset its socket without waiting for the responses. */
  hasLeft: boolean
  /** Whether the service ended the connection before the client did. */
  endedFirst: boolean
  /** Whether CONNECT arrived while a response was in flight. Then the service may cut the connection. */
  isCutByConnect: boolean
  /** Whether the stream took so long that a timeout of the service may have ended the connection. */
  isLate: boolean
  /** Whether the service shuts down. Then it may end the connection after any response. */
  inShutdown: boolean
}

interface Final { response: RawResponse, interims: number }

/** What the responses so far tell. */
interface Progress {
  /** The possible plants after the requests that have a response. */
  states: Plants[]
  /** The number of requests that have a response. */
  answered: number
  /** Whether the last response has `Connection: close`. */
  isLast: boolean
  /** Whether an error may follow instead of the next response. */
  endsByError: boolean
}

/** A connection has one request in flight, and at most 16 wait. */
const maxPipelined = 17
/** Beyond this number of ignored requests, the service ends the connection at once. */
const maxIgnored = 100
const headsIn = (bytes: Buffer) => bytes.toString('latin1').split(' HTTP/').length - 1

/**
 * Throws if the responses break a rule. Returns the possible plants after the requests that have a response
 * (`answered`), and after each further request that may have run (`cut`).
 */
export function judge (seen: Observation, predictor: Predictor, before: Plants) {
  const parsed = parseRequests(seen.sent)
  const finals = withInterims(seen.responses)
  const progress = { states: [before], answered: 0, isLast: false, endsByError: false }
  judgeResponses(finals, parsed, predictor, seen.inShutdown, progress)
  judgeOthers(finals.slice(progress.answered), parsed, predictor, progress)
  const mayBeCut = seen.hasLeft || seen.isCutByConnect || headsIn(seen.sent) > maxIgnored
  if (seen.isMidway && !mayBeCut) throw new Error('an incomplete response')
  if (!progress.isLast && !mayBeCut && !seen.inShutdown) judgeEnd(seen, finals.length, parsed, progress)
  const missing = progress.isLast || !mayBeCut ? [] : parsed.requests.slice(progress.answered)
  return { answered: progress.states, cut: statesDuring(missing, predictor, progress.states) }
}

/** Judges the responses to complete requests. */
function judgeResponses (
  finals: Final[], { requests, tail }: Parsed, predictor: Predictor, inShutdown: boolean, progress: Progress
): void {
  for (const [index, request] of requests.entries()) {
    const final = finals[index]
    if (final === undefined) return
    const { response, interims } = final
    const isClosing = closes(response)
    const mayBeEnd = mayEndBefore(requests, index) && isClosing
    const fitting = fittingOf(progress.states, (plants) => predictor.outcomesOf(request, plants), response)
    if (typeof fitting === 'string') {
      progress.endsByError = mayBeEnd
      if (mayBeEnd) return
      throw new Error(`response ${index}, to ${nameOf(request)}: ${fitting}`)
    }
    if (interims > Number(expectsContinue(request))) throw new Error(`response ${index}: ${interims} × 100`)
    const isBeyondLimit = index + 1 >= maxPipelined && (index + 1 < requests.length || tail.kind !== 'clean')
    const rule = closeRuleOf(request)
    if (rule === 'must' && !isClosing) throw new Error(`no Connection: close after ${nameOf(request)}`)
    if (rule === 'no' && isClosing && !mayBeEnd && !inShutdown && !isBeyondLimit) {
      throw new Error(`Connection: close after ${nameOf(request)}`)
    }
    Object.assign(progress, { states: fitting, answered: index + 1, isLast: isClosing })
    if (isClosing) return
  }
}

/** Judges the responses after those to complete requests. */
function judgeOthers (
  others: Final[], { requests, tail }: Parsed, predictor: Predictor, progress: Progress
): void {
  const { head } = tail
  const { states, answered, isLast } = progress
  if (others[0] !== undefined && !isLast && head !== undefined && answered === requests.length) {
    const { response } = others[0]
    // The service may respond before the body arrives. The request must not run.
    if (typeof fittingOf(states, (plants) => predictor.outcomesOfHead(head, plants), response) !== 'string') {
      others.shift()
      progress.isLast = closes(response)
    }
  }
  if (others[0] === undefined) return
  const { response } = others[0]
  const isExpected = progress.endsByError || tail.kind === 'malformed' || tail.kind === 'incomplete'
  if (progress.isLast || !isExpected || others.length > 1 || !closes(response)) {
    throw new Error(`an unexpected response: ${JSON.stringify(others)}`)
  }
  if (response.body !== '') checkError(response)
  progress.isLast = true
}

/** Judges a connection that ended without a response that closes it. */
function judgeEnd (
  { endedFirst }: Observation, responses: number, { requests, tail }: Parsed, { answered }: Progress
): void {
  if (mayEndBefore(requests, answered)) return
  const missing = requests[answered]
  if (missing !== undefined) throw new Error(`no response to request ${answered}, ${nameOf(missing)}`)
  if (mustReportError(tail) && responses === answered) throw new Error('no response to malformed input')
  if (tail.kind === 'clean' && endedFirst) throw new Error('the service ended an idle connection')
}

/** Returns the possible plants after each of the requests, if the requests run in order. */
function statesDuring (requests: Request[], { outcomesOf }: Predictor, before: Plants[]): Plants[] {
  let states = before
  return requests.flatMap((request) => {
    states = distinct(states.flatMap((plants) => outcomesOf(request, plants).map(({ plants }) => plants)))
    return states
  })
}

/** Counts the interim responses before each final response. */
function withInterims (responses: RawResponse[]): Final[] {
  const finals: Final[] = []
  let interims = 0
  for (const response of responses) {
    if (response.status === 100) interims++
    else {
      finals.push({ response, interims })
      interims = 0
    }
  }
  return finals
}

/** Returns the plants of the outcomes that fit the response, or why the first outcome does not fit. */
function fittingOf (
  states: Plants[], outcomesOf: (plants: Plants) => Outcome[], response: RawResponse
): Plants[] | string {
  const reasons: string[] = []
  const fitting = states.flatMap(outcomesOf).filter(({ check }) => {
    try {
      check(response)
      return true
    } catch (error) {
      reasons.push((error as Error).message)
      return false
    }
  })
  return fitting.length > 0 ? distinct(fitting.map(({ plants }) => plants)) : reasons[0] as string
}

/** Removes duplicates. Otherwise some requests with two outcomes each would have countless states. */
const distinct = (states: Plants[]) => [...new Map(states.map((plants) => [textOf(plants), plants])).values()]

/** Returns a text that is the same for the same plants. */
export const textOf = (plants: Plants) =>
  [...plants].map(([id, plant]) => `${id} ${JSON.stringify(plant)}`).sort().join('\n')

const mayEndBefore = (requests: Request[], index: number) =>
  index > 0 && closeRuleOf(requests[index - 1] as Request) === 'may'

export const closes = ({ headers: { connection = '' } }: RawResponse) => connection.toLowerCase() === 'close'

/** Node's parser ignores errors in the body of a request with `Upgrade`. Such a request times out. */
export const mustReportError = ({ kind, head }: Tail) =>
  kind === 'malformed' && head?.headers.some(([name]) => name === 'upgrade') !== true

export const expectsContinue = ({ version, headers }: Request) =>
  version === '1.1' && elementsOf(headers, 'expect').includes('100-continue')

const nameOf = ({ method, target }: Request) => `${method} ${target}`.slice(0, 100)
