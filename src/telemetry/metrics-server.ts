// Serves the metrics for Prometheus on a separate port.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Registry } from '@prometheus-io/client'
import { LRUCache } from 'lru-cache'
import { serializePipelining } from '../http/wire/pipelining.ts'
import { limitBodyPieces } from '../http/wire/reads.ts'

/** Rejects when the port is taken. */
export async function serveMetrics (registry: Registry, host: string, port: number | undefined) {
  // Scrapes share a rendering for a second. After a failure, the next scrape renders again.
  const fetchMethod = async () => Buffer.from(await registry.metrics())
  const rendered = new LRUCache({ max: 1, ttl: 1000, fetchMethod })
  const server = createServer(({ method, url }, response) => {
    if (method !== 'GET' || url !== '/metrics') return response.writeHead(404).end()
    // After this response, Node ignores the requests that a client has pipelined.
    response.setHeader('connection', 'close')
    rendered.forceFetch('').then(
      (bytes) => response.writeHead(200, { 'content-type': registry.contentType }).end(bytes),
      (error) => response.writeHead(500).end(`${error}\n`))
  })
  // Node closes a connection after five seconds without traffic.
  Object.assign(server, { timeout: 5000, maxConnections: 50 })
  server.on('connection', serializePipelining)
  limitBodyPieces(server)
  server.listen(port, host)
  await once(server, 'listening').catch((cause) => {
    throw new Error(`metrics cannot listen on ${host}, port ${port}`, { cause })
  })
  return {
    url: `http://${host}:${(server.address() as AddressInfo).port}/metrics`,
    async close () {
      server.closeAllConnections()
      await server[Symbol.asyncDispose]()
    }
  }
}
