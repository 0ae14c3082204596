import { once } from 'node:events'
import type { Agent } from 'node:https'
import { connect, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { connect as connectTls } from 'node:tls'
import { moduleFor, socketOptions } from './client.ts'

export interface Target {
  address: string
  /** The address of the service's metrics listener. Empty if the service does not serve metrics. */
  metrics: string
  tokens: string[]
  /** A valid JWT, if the service accepts JWTs. */
  jwt?: string | undefined
  /** The addresses that the connections come from. By default the system chooses. */
  localAddresses?: string[]
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

const usesTls = (address: string) => address.startsWith('https:')

const connectionsOf = ({ address, tokens, connections, localAddresses = [] }: Target) =>
  Array.from({ length: connections }, (_, index) => ({
    token: tokens[index % tokens.length] as string,
    socket: socketOptions(localAddresses[index % localAddresses.length]),
    // The service cannot limit a flood of TLS handshakes. So start one handshake in a millisecond.
    startMs: usesTls(address) ? index : 0
  }))

function open (address: string, socket: ReturnType<typeof socketOptions>): Socket {
  const { hostname: host, port } = new URL(address)
  const options = { ...socket, host, port: Number(port) }
  return usesTls(address) ? connectTls(options) : connect(options)
}

function send (
  address: string, agent: Agent, { method = 'GET', path = '/plants', token, body }: Request
): Promise<void> {
  const headers = {
    authorization: `Bearer ${token}`,
    ...body !== undefined && { 'content-type': 'application/json', 'content-length': body.length }
  }
  return new Promise((resolve) => {
    const done = (status?: number) => resolve(count(status))
    moduleFor(address).request(address + path, { agent, method, headers }, (response) => {
      response.resume().on('close', () => done(response.statusCode))
    }).on('error', () => done()).end(body)
  })
}

/**
 * Sends one request at a time on each connection. `toRequest` gets the number of earlier requests on the
 * connection. `perSecond` limits the total rate of all connections.
 */
export async function flood (
  target: Target, toRequest: (sent: number) => Request, { perSecond = Infinity } = {}
): Promise<void> {
  const intervalMs = target.connections / perSecond * 1000
  const { Agent } = moduleFor(target.address)
  await Promise.all(connectionsOf(target).map(async ({ token, socket, startMs }, index) => {
    const agent = new Agent({ keepAlive: true, maxSockets: 1, ...socket })
    await delay(Math.max(startMs, index / perSecond * 1000))
    for (let sent = 0, next = performance.now() + intervalMs; ; next += intervalMs) {
      await send(target.address, agent, { token, ...toRequest(sent++) })
      if (intervalMs > 0) await delay(Math.max(0, next - performance.now()))
    }
  }))
}

/** Sends `toParts(token)` on each connection. Never reads a response. */
export function hold (
  target: Target, toParts: (token: string) => Array<string | Buffer>, address = target.address
): void {
  first.resolve()
  for (const { token, socket: options, startMs } of connectionsOf(target)) {
    setTimeout(() => {
      const socket = open(address, options).pause().on('error', () => {})
      socket.cork()
      for (const part of toParts(token)) socket.write(part)
      socket.uncork()
    }, startMs)
  }
}

/**
 * Opens all connections, and awaits a response to `toFirst` on each. Then sends one request on each
 * connection, all requests in the same tick. Repeats this when all connections have closed, at the earliest
 * `everyMs` after the requests.
 */
export async function burst (
  target: Target, toText: (token: string) => string, everyMs: number, toFirst?: (token: string) => string
): Promise<void> {
  const connectEvent = usesTls(target.address) ? 'secureConnect' : 'connect'
  for (;;) {
    const sockets = connectionsOf(target).map(({ token, socket: options }) => {
      const socket = open(target.address, options).on('error', () => {})
      const connected = once(socket, connectEvent).then(async () => {
        if (toFirst === undefined) return
        socket.write(toFirst(token))
        await once(socket, 'data')
      }).catch(() => {})
      return { socket, token, connected }
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
