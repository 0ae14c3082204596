import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import type { Scope } from '../../support/program.ts'

export type Proxy = Awaited<ReturnType<typeof openProxy>>

/** Opens a TCP proxy to the database server at `url`. The proxy simulates network faults. */
export async function openProxy (scope: Scope, url: string) {
  const { hostname, port } = new URL(url)
  const pairs = new Set<{ sockets: Socket[], isDead: boolean }>()
  let mode = 'open'
  let [delayMs, bytesPerSecond, most] = [0, Infinity, 0]

  // Without `allowHalfOpen` and `destroyOnReturn`, a client could close a connection that forwards no data.
  const server = createServer({ allowHalfOpen: true }, (near) => {
    if (mode === 'closed') return near.resetAndDestroy()
    const far = connect({ port: Number(port), host: hostname, allowHalfOpen: true })
    const pair = { sockets: [near, far], isDead: mode === 'silent' }
    pairs.add(pair)
    most = Math.max(most, pairs.size)
    near.on('close', () => pairs.delete(pair)).on('close', () => far.destroy())
    pump(near, far, pair)
    pump(far, near, pair)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port: proxyPort } = server.address() as AddressInfo

  async function pump (from: Socket, to: Socket, pair: { isDead: boolean }): Promise<void> {
    from.setNoDelay()
    to.on('error', () => {})
    try {
      for await (const chunk of from.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
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
      // `resetAndDestroy` would wait forever for a socket that is shutting down.
      if (socket.writableEnded) socket.destroy()
      else socket.resetAndDestroy()
    }
  }
  scope.teardown(cut)
  scope.teardown(() => server.close())

  return {
    url: Object.assign(new URL(url), { host: `127.0.0.1:${proxyPort}` }).href,
    /** `now` counts open connections. `most` is the largest `now` since `forgetMost`. */
    connections: () => ({ now: pairs.size, most }),
    forgetMost () { most = pairs.size },
    /** `open` forwards new connections. `closed` resets them. `silent` accepts them but forwards no data. */
    set (wanted: 'open' | 'closed' | 'silent') { mode = wanted },
    cut,
    /** Permanently stops forwarding data on the open connections. The connections stay open. */
    silence () { for (const pair of pairs) pair.isDead = true },
    /** Delays every chunk of data by `ms`. Limits each direction of a connection to `rate` bytes a second. */
    slow (ms: number, rate = Infinity) { [delayMs, bytesPerSecond] = [ms, rate] }
  }
}
