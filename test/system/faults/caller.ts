import { Agent, request, type IncomingMessage, type OutgoingHttpHeaders } from 'node:http'
import { text } from 'node:stream/consumers'

/** `cut`: the connection ended without a whole answer; `unsent`: there was none to send the request on. */
export type Outcome = 'answered' | 'cut' | 'unsent'

export interface Answer {
  outcome: Outcome
  status: number
  headers: IncomingMessage['headers']
  body: string
  startedAt: number
  ms: number
}

export type Caller = ReturnType<typeof createCaller>

/** Somebody who calls the service over kept connections and is told of every way it can end. */
export function createCaller (address: string, token?: string, { maxSockets = Infinity } = {}) {
  const agent = new Agent({ keepAlive: true, maxSockets })

  function send (method: string, path: string, body?: object): Promise<Answer> {
    const startedAt = performance.now()
    const answer = (outcome: Outcome, rest: Partial<Answer> = {}): Answer =>
      ({ outcome, status: 0, headers: {}, body: '', startedAt, ms: performance.now() - startedAt, ...rest })
    const payload = body && JSON.stringify(body)
    const headers: OutgoingHttpHeaders = {}
    if (token !== undefined) headers.authorization = `Bearer ${token}`
    if (payload !== undefined) Object.assign(headers, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(payload) })
    return new Promise((resolve) => {
      const outgoing = request(address + path, { agent, method, headers }, (response) => {
        text(response).then(
          (body) => resolve(answer('answered', { status: response.statusCode as number, headers: response.headers, body })),
          () => resolve(answer('cut')))
      })
      outgoing.on('error', (error: NodeJS.ErrnoException) => resolve(answer(error.code === 'ECONNREFUSED' ? 'unsent' : 'cut')))
      outgoing.end(payload)
    })
  }

  return {
    create: (plant: { id: number, name: string, tag?: string }) => send('POST', '/plants', plant),
    list: (query = '') => send('GET', `/plants${query}`),
    delete: (id: number) => send('DELETE', `/plants/${id}`),
    get: (path: string) => send('GET', path),
    close: () => agent.destroy()
  }
}

/** The number in an Error body, undefined for any other body. */
export function errorNumber ({ body }: Answer): number | undefined {
  try {
    const parsed = JSON.parse(body)
    const isError = Object.keys(parsed).join() === 'error,message' && typeof parsed.message === 'string'
    return isError && Number.isInteger(parsed.error) ? parsed.error : undefined
  } catch {
    return undefined
  }
}
