import http, { type IncomingMessage, type OutgoingHttpHeaders } from 'node:http'
import https from 'node:https'
import { text } from 'node:stream/consumers'

/** `cut`: the connection closed before the whole response arrived. `unsent`: the connection was refused. */
export type Outcome = 'complete' | 'cut' | 'unsent'

export interface HttpResponse {
  outcome: Outcome
  /** 0 unless the outcome is `complete`. */
  status: number
  headers: IncomingMessage['headers']
  body: string
  startedAt: number
  ms: number
}

export type Client = ReturnType<typeof createClient>

/** Returns node:https or node:http, which have the same functions. */
export const moduleFor = (address: string) => (address.startsWith('https:') ? https : http) as typeof https

/** `localAddress` is the client's address. Accepts the self-signed certificate of a proxy. */
export const socketOptions = (localAddress?: string) =>
  ({ ...localAddress !== undefined && { localAddress }, rejectUnauthorized: false })

/** All promises of the client resolve. A failed request has an outcome other than `complete`. */
export function createClient (
  address: string, token?: string,
  { keepAlive = true, localAddress }: { keepAlive?: boolean, localAddress?: string | undefined } = {}
) {
  const { Agent, request } = moduleFor(address)
  const agent = new Agent({ keepAlive, ...socketOptions(localAddress) })

  function send (method: string, path: string, body?: object): Promise<HttpResponse> {
    const startedAt = performance.now()
    const ended = (outcome: Outcome, rest: Partial<HttpResponse> = {}): HttpResponse =>
      ({ outcome, status: 0, headers: {}, body: '', startedAt, ms: performance.now() - startedAt, ...rest })
    const payload = body && JSON.stringify(body)
    const headers: OutgoingHttpHeaders = {}
    if (token !== undefined) headers.authorization = `Bearer ${token}`
    if (payload !== undefined) {
      headers['content-type'] = 'application/json'
      headers['content-length'] = Buffer.byteLength(payload)
    }
    return new Promise((resolve) => {
      const outgoing = request(address + path, { agent, method, headers }, (incoming) => {
        const { statusCode: status = 0, headers } = incoming
        text(incoming).then(
          (body) => resolve(ended('complete', { status, headers, body })),
          () => resolve(ended('cut'))
        )
      })
      outgoing.on('error', (error: NodeJS.ErrnoException) =>
        resolve(ended(error.code === 'ECONNREFUSED' ? 'unsent' : 'cut')))
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

/** Calls `send` so many times a second, and sends probes ten times a second, until `stop`. */
export function startLoad (client: Client, perSecond: number, send: () => Array<Promise<HttpResponse>>) {
  const pending: Array<Promise<unknown>> = []
  const responses: HttpResponse[] = []
  const lives: HttpResponse[] = []
  const readies: HttpResponse[] = []
  const collect = (into: HttpResponse[], sent: Promise<HttpResponse>) =>
    pending.push(sent.then((response) => into.push(response)))
  const began = performance.now()
  let [sent, probed] = [0, 0]
  const timer = setInterval(() => {
    const seconds = (performance.now() - began) / 1000
    for (; sent < seconds * perSecond; sent++) {
      for (const response of send()) collect(responses, response)
    }
    for (; probed < seconds * 10; probed++) {
      collect(lives, client.get('/livez'))
      collect(readies, client.get('/readyz'))
    }
  }, 5)
  return {
    hasFailed: () => responses.some(({ status }) => status === 503),
    async stop () {
      clearInterval(timer)
      await Promise.all(pending)
      return { responses, lives, readies }
    }
  }
}

/** Returns the error number from an Error body, or undefined for any other body. */
export function errorNumber ({ body }: HttpResponse): number | undefined {
  try {
    const parsed = JSON.parse(body)
    const isError = Object.keys(parsed).join() === 'error,message' && typeof parsed.message === 'string'
    return isError && Number.isInteger(parsed.error) ? parsed.error : undefined
  } catch {
    return undefined
  }
}

export const describe = ({ outcome, status, body, ms }: HttpResponse) =>
  `${outcome} ${status} ${body.slice(0, 200)} after ${Math.round(ms)} ms`
