import { once } from 'node:events'
import type { IncomingMessage } from 'node:http'
import { connect, type Socket } from 'node:net'
import { finished } from 'node:stream/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { connect as connectTls } from 'node:tls'
import { createAgent, request, type Request } from './client.ts'

/** `metrics` is the address of the metrics listener. Connections come from the addresses `sources`. */
export interface Target {
  address: string, metrics: string, connections: number, sources: string[], tokens: string[], jwt?: string
}

/** The number of responses by status. Status 0 counts requests without a whole response. */
export type Counts = Record<number, number>

export const counts: Counts = {}
export const first = Promise.withResolvers<void>()

function count (status: number): void {
  counts[status] = (counts[status] ?? 0) + 1
  first.resolve()
}

const usesTls = ({ address }: Target) => address.startsWith('https:')

const connectionsOf = (target: Target) => Array.from({ length: target.connections }, (_, index) => ({
  token: target.tokens[index % target.tokens.length] as string,
  localAddress: target.sources[index % target.sources.length],
  // The service cannot limit a flood of TLS handshakes. So start one handshake in a millisecond.
  startMs: usesTls(target) ? index : 0
}))

function open (target: Target, localAddress?: string): Socket {
  const { hostname: host, port } = new URL(target.address)
  const options = { host, port: Number(port), localAddress, rejectUnauthorized: false }
  return (usesTls(target) ? connectTls(options) : connect(options)).on('error', () => {})
}

/**
 * Sends one request at a time on each connection. `toRequest` gets the number of earlier requests on the
 * connection. `perSecond` limits the total rate of all connections.
 */
export async function flood (
  target: Target, toRequest: (sent: number) => Request, perSecond = Infinity
): Promise<void> {
  const intervalMs = target.connections / perSecond * 1000
  const skip = (response: IncomingMessage) => finished(response.resume()).then(() => '')
  await Promise.all(connectionsOf(target).map(async ({ token, localAddress, startMs }, index) => {
    const agent = createAgent(target.address, { maxSockets: 1, localAddress })
    await delay(Math.max(startMs, index / perSecond * 1000))
    for (let sent = 0, next = performance.now() + intervalMs; ; next += intervalMs) {
      const { status } = await request(target.address, agent, { token, ...toRequest(sent++) }, skip)
      count(status)
      if (intervalMs > 0) await delay(Math.max(0, next - performance.now()))
    }
  }))
}

/** Sends `toParts(token)` on each connection. Never reads a response. */
export function hold (target: Target, toParts: (token: string) => Array<string | Buffer>): void {
  first.resolve()
  for (const { token, localAddress, startMs } of connectionsOf(target)) {
    setTimeout(() => {
      const socket = open(target, localAddress).pause()
      for (const part of toParts(token)) socket.write(part)
    }, startMs)
  }
}

/** Opens connections that are idle after one request. Returns their sockets. */
export function openIdle (target: Target): Promise<Socket[]> {
  return Promise.all(connectionsOf(target).map(async ({ localAddress, startMs }) => {
    await delay(startMs)
    const socket = open(target, localAddress)
    await once(socket, usesTls(target) ? 'secureConnect' : 'connect')
    socket.write('GET /livez HTTP/1.1\r\nHost: x\r\n\r\n')
    await once(socket, 'data')
    return socket
  }))
}

/**
 * Opens all connections, and awaits a response to `toFirst` on each. Then sends one request on each
 * connection, all requests in the same tick. Repeats this when all connections have closed, at the earliest
 * `everyMs` after the requests.
 */
export async function burst (
  target: Target, toText: (token: string) => string, everyMs: number, toFirst?: (token: string) => string
): Promise<void> {
  for (;;) {
    const sockets = connectionsOf(target)
      .map(({ token, localAddress }) => ({ token, socket: open(target, localAddress) }))
    await Promise.allSettled(sockets.map(async ({ token, socket }) => {
      await once(socket, usesTls(target) ? 'secureConnect' : 'connect')
      if (toFirst === undefined) return
      socket.write(toFirst(token))
      await once(socket, 'data')
    }))
    await Promise.all([delay(everyMs), ...sockets.map(async ({ token, socket }) => {
      let status = 0
      socket.on('data', (chunk) => { status ||= Number(chunk.toString('latin1', 9, 12)) })
      socket.write(toText(token))
      await finished(socket).catch(() => {})
      count(status)
    })])
  }
}
