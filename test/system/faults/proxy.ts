import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import type { Scope } from '../../support/program.ts'

/** `silent`: takes connections and bytes, passes nothing on and closes nothing. */
type Mode = 'open' | 'closed' | 'silent'

export type Proxy = Awaited<ReturnType<typeof openProxy>>

/** A TCP proxy on loopback, in front of the server of a URL, that can do to connections what networks do. */
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
      // One that is being shut down can't be reset: Node's own end would wait for it for ever.
      if (socket.writableEnded) socket.destroy()
      else socket.resetAndDestroy()
    }
  }
  scope.teardown(() => {
    server.close()
    cut()
  })

  return {
    /** The same database by way of the proxy. */
    url: proxied.href,
    /** Connections now, and the most there were at a time. */
    connections: () => ({ now: pairs.size, most }),
    /** Counts the most from here on. */
    forgetMost () { most = pairs.size },
    set (wanted: Mode) { mode = wanted },
    /** What is under way is reset. */
    cut,
    /** The connections there are lose both ends without a word, for good. */
    silence () { for (const pair of pairs) pair.isDead = true },
    /** Every piece of data is held back for so long. */
    slow (ms: number, rate = Infinity) {
      delayMs = ms
      bytesPerSecond = rate
    }
  }
}
