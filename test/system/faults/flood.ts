import { once } from 'node:events'
import { Agent, request } from 'node:http'
import { connect } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'

export interface Target {
  address: string
  /** The address of the service's metrics listener. Empty if the service does not serve metrics. */
  metrics: string
  tokens: string[]
  connections: number
  bodyLimit: number
}

export interface Request { method?: string, path?: string, token?: string, body?: string | undefined }

/** The number of responses by status. Status 0 counts requests without a response. */
export type Counts = Record<number, number>

export const counts: Counts = {}
export const first = Promise.withResolvers<void>()

function count (status = 0): void {
  counts[status] = (counts[status] ?? 0) + 1
  first.resolve()
}

const tokensOf = ({ tokens, connections }: Target) =>
  Array.from({ length: connections }, (_, index) => tokens[index % tokens.length] as string)

const agent = new Agent({ keepAlive: true, maxSockets: Infinity })

function send (address: string, { method = 'GET', path = '/plants', token, body }: Request): Promise<void> {
  const headers = {
    authorization: `Bearer ${token}`,
    ...body !== undefined && { 'content-type': 'application/json', 'content-length': body.length }
  }
  return new Promise((resolve) => {
    const done = (status?: number) => resolve(count(status))
    request(address + path, { agent, method, headers }, (response) => {
      response.resume().on('close', () => done(response.statusCode))
    }).on('error', () => done()).end(body)
  })
}

/** Sends one request at a time on each connection. `perSecond` limits the total rate of all connections. */
export async function flood (
  target: Target, toRequest: (token: string) => Request, { perSecond = Infinity } = {}
): Promise<void> {
  const intervalMs = target.connections / perSecond * 1000
  await Promise.all(tokensOf(target).map(async (token, index) => {
    if (intervalMs > 0) await delay(index / perSecond * 1000)
    for (let next = performance.now() + intervalMs; ; next += intervalMs) {
      await send(target.address, { token, ...toRequest(token) })
      if (intervalMs > 0) await delay(Math.max(0, next - performance.now()))
    }
  }))
}

/** Sends `toParts(token)` on each connection. Never reads a response. */
export function hold (
  target: Target, toParts: (token: string) => Array<string | Buffer>, address = target.address
): void {
  const { hostname, port } = new URL(address)
  first.resolve()
  for (const token of tokensOf(target)) {
    const socket = connect(Number(port), hostname).pause().on('error', () => {})
    socket.cork()
    for (const part of toParts(token)) socket.write(part)
    socket.uncork()
  }
}

/**
 * Opens all connections. Then sends one request on each connection, all requests in the same tick. Repeats
 * this when all connections have closed, at the earliest `everyMs` after the requests.
 */
export async function burst (
  target: Target, toText: (token: string) => string, everyMs: number
): Promise<void> {
  const { hostname, port } = new URL(target.address)
  for (;;) {
    const sockets = tokensOf(target).map((token) => {
      const socket = connect(Number(port), hostname).on('error', () => {})
      return { socket, token, connected: once(socket, 'connect').catch(() => {}) }
    })
    await Promise.all(sockets.map(({ connected }) => connected))
    const ended = sockets.map(async ({ socket, token }) => {
      socket.write(toText(token))
      let status = 0
      socket.on('data', (chunk) => { status ||= Number(chunk.toString('latin1', 9, 12)) })
      await once(socket, 'close').catch(() => {})
      count(status)
    })
    await Promise.all([...ended, delay(everyMs)])
  }
}
