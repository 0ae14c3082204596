// Compares the responses to a stream with the requests that parse.ts finds in the same bytes.
import type { RawResponse } from '../../../support/raw.ts'
import { checkError } from '../checks.ts'
import type { Plants } from '../oracle.ts'
import { elementsOf, parseRequests, type Request } from './parse.ts'
import { closeRuleOf, outcomesOf, outcomesOfHead, type LargeResponses, type Outcome } from './predict.ts'

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
  /** Whether CONNECT arrived while a response was in flight. Then the service may end the connection at once. */
  isCutByConnect: boolean
  /** Whether the service shuts down. Then it may end the connection after any response. */
  inShutdown: boolean
}

/** A connection has one request in flight, and at most 16 wait. */
const maxPipelined = 17

/**
 * Throws if the responses break a rule. Returns the possible plants after the stream, and after the requests that
 * ran without a response.
 */
export function judge (seen: Observation, token: string, before: Plants, large: LargeResponses) {
  const { requests, tail } = parseRequests(seen.sent)
  const finals = withInterims(seen.responses)
  const mayBeCut = seen.hasLeft || seen.isCutByConnect
  let states = [before]
  let [index, isLast, endsByError] = [0, false, false]

  for (const { response, interims } of finals.slice(0, requests.length)) {
    const request = requests[index] as Request
    // An end that the previous request may cause can come as an error.
    const mayBeError = index > 0 && closeRuleOf(requests[index - 1] as Request) === 'may' && isClosing(response)
    const fitting = fittingOf(states.flatMap((plants) => outcomesOf(request, token, plants, large)), response)
    if (typeof fitting === 'string') {
      endsByError = mayBeError
      if (endsByError) break
      throw new Error(`response ${index}, to ${nameOf(request)}: ${fitting}`)
    }
    if (interims > Number(expectsContinue(request))) throw new Error(`response ${index}: ${interims} × 100`)
    states = distinct(fitting)
    index++
    isLast = isClosing(response)
    const rule = closeRuleOf(request)
    const isBeyondLimit = index >= maxPipelined && (index < requests.length || tail.kind !== 'clean')
    if (rule === 'must' && !isLast) throw new Error(`no Connection: close after ${nameOf(request)}`)
    if (rule === 'no' && isLast && !mayBeError && !seen.inShutdown && !isBeyondLimit) {
      throw new Error(`Connection: close after ${nameOf(request)}`)
    }
    if (isLast) break
  }

  const others = finals.slice(index)
  if (others.length > 0 && !isLast && tail.head !== undefined && index === requests.length) {
    const { head } = tail
    const outcomes = states.flatMap((plants) => outcomesOfHead(head, token, plants, large))
    if (typeof fittingOf(outcomes, (others[0] as Final).response) !== 'string') {
      isLast = isClosing((others.shift() as Final).response)
    }
  }
  if (others.length > 0) {
    const [{ response }] = others as [Final]
    const isExpected = endsByError || tail.kind === 'malformed' || tail.kind === 'incomplete'
    if (isLast || !isExpected || others.length > 1 || !isClosing(response)) {
      throw new Error(`an unexpected response: ${JSON.stringify(others)}`)
    }
    if (response.body !== '') checkError(response)
    isLast = true
  }

  if (seen.isMidway && !mayBeCut) throw new Error('an incomplete response')
  if (!isLast && !mayBeCut && !seen.inShutdown) {
    const missing = requests[index]
    const mayEnd = index > 0 && closeRuleOf(requests[index - 1] as Request) === 'may'
    if (missing !== undefined && !mayEnd) throw new Error(`no response to request ${index}, ${nameOf(missing)}`)
    if (tail.kind === 'malformed' && finals.length === index) throw new Error('no response to malformed input')
    if (tail.kind === 'clean' && seen.endedFirst && !mayEnd) throw new Error('the service ended an idle connection')
  }
  const unanswered = isLast ? [] : requests.slice(index)
  return { answered: states, cut: mayBeCut ? statesAfter(unanswered) : [] }

  /** Returns the possible plants if one or more of the `unanswered` requests ran, in order. */
  function statesAfter (unanswered: Request[]): Plants[] {
    let reached = states
    return unanswered.flatMap((request) => {
      const outcomes = reached.flatMap((plants) => outcomesOf(request, token, plants, large))
      reached = distinct(outcomes.map(({ plants }) => plants))
      return reached
    })
  }
}

/** Removes duplicates. Otherwise a few requests with two outcomes each would have countless states. */
const distinct = (states: Plants[]) => [...new Map(states.map((plants) => [textOf(plants), plants])).values()]

/** Returns a text that is the same for the same plants. */
export const textOf = (plants: Plants) =>
  [...plants].map(([id, plant]) => `${id} ${JSON.stringify(plant)}`).sort().join('\n')

interface Final { response: RawResponse, interims: number }

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
function fittingOf (outcomes: Outcome[], response: RawResponse): Plants[] | string {
  const reasons: string[] = []
  const fitting = outcomes.flatMap(({ check, plants }) => {
    try {
      check(response)
      return [plants]
    } catch (error) {
      reasons.push((error as Error).message)
      return []
    }
  })
  return fitting.length > 0 ? fitting : reasons[0] ?? 'no response is possible'
}

export const isClosing = ({ headers: { connection = '' } }: RawResponse) => connection.toLowerCase() === 'close'

export const expectsContinue = ({ version, headers }: Request) =>
  version === '1.1' && elementsOf(headers, 'expect').includes('100-continue')

const nameOf = ({ method, target }: Request) => `${method} ${target}`.slice(0, 100)
