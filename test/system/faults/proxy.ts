import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import type { Scope } from '../../support/program.ts'

/**
 * What the proxy does with new connections: `open` forwards them, `closed` resets them, and `silent` accepts
 * them and their bytes but forwards nothing and never closes them.
 */
type Mode = 'open' | 'closed' | 'silent'

export type Proxy = Awaited<ReturnType<typeof openProxy>>

/** Opens a TCP proxy on loopback in front of the server of the URL. It simulates faults of networks. */
export async function openProxy (scope: Scope, url: string) {
  const { hostname, port } = new URL(url)
  const pairs = new Set<{ sockets: Socket[], isDead: boolean }>()
  let mode: Mode = 'open'
  let delayMs = 0
  let bytesPerSecond = Infinity
  let most = 0

  const server = createServer((near) => {
    if (mode === 'closed') return near.resetAndDestroy()
    const far = connect({ port: Number(port), host: hostname })
    const pair = { sockets: [near, far], isDead: mode === 'silent' }
    pairs.add(pair)
    most = Math.max(most, pairs.size)
    near.on('close', () => {
      pairs.delete(pair)
      far.destroy()
    })
    pump(near, far, pair)
    pump(far, near, pair)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const proxied = new URL(url)
  proxied.hostname = '127.0.0.1'
  proxied.port = String((server.address() as AddressInfo).port)

  async function pump (from: Socket, to: Socket, pair: { isDead: boolean }): Promise<void> {
    from.setNoDelay()
    to.on('error', () => {})
    try {
      for await (const chunk of from as AsyncIterable<Buffer>) {
        const ms = delayMs + chunk.length / bytesPerSecond * 1000
        if (ms > 0) await delay(ms)
        if (!pair.isDead) to.write(chunk)
      }
      if (!pair.isDead) to.end()
    } catch {
      if (!pair.isDead) to.destroy()
    }
  }

  const cut = () => {
    for (const socket of [...pairs].flatMap(({ sockets }) => sockets)) {
      // Node cannot reset a socket that is shutting down; `resetAndDestroy` would wait forever.
      if (socket.writableEnded) socket.destroy()
      else socket.resetAndDestroy()
    }
  }
  scope.teardown(() => {
    server.close()
    cut()
  })

  return {
    /** The URL of the same database through the proxy. */
    url: proxied.href,
    /** The number of open connections, and the most connections that were open at a time. */
    connections: () => ({ now: pairs.size, most }),
    /** Sets `most` back to the number of open connections. */
    forgetMost () { most = pairs.size },
    set (wanted: Mode) { mode = wanted },
    /** Resets all connections. */
    cut,
    /** Stops forwarding on the open connections for good, without closing them. */
    silence () { for (const pair of pairs) pair.isDead = true },
    /** Delays every chunk of data by `ms`. Limits each direction of a connection to `rate` bytes a second. */
    slow (ms: number, rate = Infinity) {
      delayMs = ms
      bytesPerSecond = rate
    }
  }
}
