import http, { type IncomingHttpHeaders, type IncomingMessage } from 'node:http'
import https, { type Agent, type AgentOptions } from 'node:https'
import { text } from 'node:stream/consumers'

/** `cut`: the connection closed before the whole response arrived. `unsent`: the connection was refused. */
type Outcome = 'complete' | 'cut' | 'unsent'

/** The status is 0 unless the outcome is `complete`. */
export interface HttpResponse {
  outcome: Outcome, status: number, headers: IncomingHttpHeaders, body: string, startedAt: number, ms: number
}

export interface Request { method?: string, path?: string, token?: string | undefined, body?: string }

export type Client = ReturnType<typeof createClient>

/** Creates an agent for HTTP or HTTPS, which accepts the self-signed certificate of a proxy. */
export const createAgent = (address: string, options: AgentOptions): Agent =>
  new (moduleFor(address).Agent)({ keepAlive: true, rejectUnauthorized: false, ...options })

/** Returns node:https or node:http, which have the same functions. */
const moduleFor = (address: string) => (address.startsWith('https:') ? https : http) as typeof https

/** The promise never rejects. A failed request has an outcome other than `complete`. */
export function request (
  address: string, agent: Agent, { method = 'GET', path = '/plants', token, body }: Request,
  read: (incoming: IncomingMessage) => Promise<string> = text
): Promise<HttpResponse> {
  const startedAt = performance.now()
  const headers = {
    ...token !== undefined && { authorization: `Bearer ${token}` },
    ...body !== undefined && { 'content-type': 'application/json' }
  }
  return new Promise((resolve) => {
    const end = (outcome: Outcome, rest: Partial<HttpResponse> = {}) => resolve(
      { outcome, status: 0, headers: {}, body: '', startedAt, ms: performance.now() - startedAt, ...rest })
    moduleFor(address).request(address + path, { agent, method, headers }, (incoming) => {
      const { statusCode: status = 0, headers } = incoming
      read(incoming).then((body) => end('complete', { status, headers, body }), () => end('cut'))
    })
      .on('error', ({ code }: NodeJS.ErrnoException) => end(code === 'ECONNREFUSED' ? 'unsent' : 'cut'))
      .end(body)
  })
}

export function createClient (address: string, token?: string, options: AgentOptions = {}) {
  const agent = createAgent(address, options)
  const send = (options: Request) => request(address, agent, { token, ...options })
  return {
    create: (plant: { id: number, name: string, tag?: string }) =>
      send({ method: 'POST', body: JSON.stringify(plant) }),
    list: (query = '') => send({ path: `/plants${query}` }),
    delete: (id: number) => send({ method: 'DELETE', path: `/plants/${id}` }),
    get: (path: string) => send({ path }),
    close: () => agent.destroy()
  }
}

/** Calls `send` so many times a second, and sends probes ten times a second, until `stop`. */
export function startLoad (client: Client, perSecond: number, send: () => Array<Promise<HttpResponse>>) {
  const pending: Array<Promise<unknown>> = []
  const all = { responses: [] as HttpResponse[], lives: [] as HttpResponse[], readies: [] as HttpResponse[] }
  const collect = (kind: keyof typeof all, sent: Promise<HttpResponse>) =>
    pending.push(sent.then((response) => all[kind].push(response)))
  const began = performance.now()
  let [sent, probed] = [0, 0]
  const timer = setInterval(() => {
    const seconds = (performance.now() - began) / 1000
    for (; sent < seconds * perSecond; sent++) {
      for (const response of send()) collect('responses', response)
    }
    for (; probed < seconds * 10; probed++) {
      collect('lives', client.get('/livez'))
      collect('readies', client.get('/readyz'))
    }
  }, 5)
  return {
    hasFailed: () => all.responses.some(({ status }) => status === 503),
    async stop () {
      clearInterval(timer)
      await Promise.all(pending)
      return all
    }
  }
}

/** Returns the error number from an Error body, or NaN for any other body. */
export const errorNumber = ({ body }: HttpResponse): number =>
  Number(/^{"error":(\d+),"message":"(?:[^"\\]|\\.)*"}$/.exec(body)?.[1])

export const describe = ({ outcome, status, body, ms }: HttpResponse) =>
  `${outcome} ${status} ${body.slice(0, 200)} after ${Math.round(ms)} ms`
