// Serves metrics for Prometheus on a separate port. Loaded only if METRICS_PORT is set.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Registry } from '@prometheus-io/client'
import { LRUCache } from 'lru-cache'
import type { Config } from '../config.ts'
import { limitBodyPieces } from '../http/wire/body-pieces.ts'
import { serializePipelining } from '../http/wire/pipelining.ts'
import { measureDatabase, measureJwts } from './event-metrics.ts'
import { unreadyReasons } from './health.ts'
import { createMetrics } from './registry.ts'
import { measureRequests } from './request-metrics.ts'
import type { Telemetry } from './telemetry.ts'

const renderIntervalMs = 1000
const maxConnections = 50
/** After this time without traffic, the metrics server closes a connection. */
const connectionTimeoutMs = 5000

/** All known series start at 0. A ratio, such as errors per request, has no result if a series is missing. */
export async function openMetrics (
  config: Config, port: number, build: { version: string, schema: string }
): Promise<Telemetry> {
  const metrics = createMetrics()
  metrics.gauge('plant_store_build_info', 'Always 1',
    function () { this.set(build, 1) }, 'version', 'schema')
  const server = await listen(metrics.registry, config.METRICS_HOST, port)

  return {
    url: `http://${config.METRICS_HOST}:${(server.address() as AddressInfo).port}/metrics`,

    instrument (app, database, readiness) {
      measureRequests(app, metrics)
      measureDatabase(database, metrics)
      if (config.JWT_ISSUER !== undefined) measureJwts(metrics)
      metrics.gauge('plant_store_unready',
        '1 for the reason why the service is not ready, all 0 when it is ready', async function () {
          const unready = await readiness()
          for (const reason of unreadyReasons) this.set({ reason }, reason === unready?.name ? 1 : 0)
        }, 'reason')
    },

    async close () {
      server.close()
      server.closeAllConnections()
      await once(server, 'close')
    }
  }
}

async function listen (registry: Registry, host: string, port: number) {
  // Scrapes share a rendering for `renderIntervalMs`. After a failure, the next scrape renders again.
  const rendered = new LRUCache({
    max: 1, ttl: renderIntervalMs, fetchMethod: async () => Buffer.from(await registry.metrics())
  })
  const server = createServer(({ method, url }, response) => {
    if (method !== 'GET' || url !== '/metrics') return response.writeHead(404).end()
    // After this response, Node ignores the requests that a client has pipelined.
    response.setHeader('connection', 'close')
    rendered.forceFetch('').then(
      (bytes) => response.writeHead(200, { 'content-type': registry.contentType }).end(bytes),
      (error) => response.writeHead(500).end(`${error}\n`))
  })
  Object.assign(server, { timeout: connectionTimeoutMs, maxConnections })
  server.on('connection', serializePipelining)
  limitBodyPieces(server)
  server.listen(port, host)
  await once(server, 'listening').catch((cause) => {
    throw new Error(`metrics cannot listen on ${host}, port ${port}`, { cause })
  })
  return server
}
