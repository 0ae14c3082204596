import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'

/** For programs that cannot choose a free port themselves. */
export async function freePort (): Promise<number> {
  await using probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  return (probe.address() as AddressInfo).port
}
