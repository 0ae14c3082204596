import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'

/** A port of loopback that nobody listens on, for a program that can't choose one and tell. */
export async function freePort (): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = probe.address() as AddressInfo
  probe.close()
  await once(probe, 'close')
  return port
}
