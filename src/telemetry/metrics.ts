// Serves metrics for Prometheus on a separate port. Loaded only if METRICS_PORT is set.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Registry } from '@prometheus-io/client'
import type { FastifyInstance } from 'fastify'
import type { Database } from '../database/database.ts'
import { serializePipelining } from '../http/wire/pipelining.ts'
import { measureDatabase } from './database-metrics.ts'
import { unreadyReasons, type Readiness } from './health.ts'
import { measureJwts } from './jwt-metrics.ts'
import { createMetrics } from './registry.ts'
import { measureRequests } from './request-metrics.ts'

export interface MetricsOptions {
  host: string
  /** 0 picks a free port. */
  port: number
  version: string
  /** The newest migration that this build knows. */
  schema: string
  jwts: boolean
}

const renderIntervalMs = 1000
const maxConnections = 50
/** After this time, the metrics server closes a connection that is idle, stalled or still sends a request. */
const connectionTimeoutMs = 5000

/** All known series start at 0. A ratio, such as errors per request, has no result if a series is missing. */
export async function openMetrics ({ host, port, version, schema, jwts }: MetricsOptions) {
  const metrics = createMetrics()
  metrics.gauge('plant_store_build_info', 'Always 1',
    function () { this.set({ version, schema }, 1) }, 'version', 'schema')
  const server = await listen(metrics.registry, host, port)
  const stops: Array<() => void> = []

  return {
    url: `http://${host}:${(server.address() as AddressInfo).port}/metrics`,

    instrument (app: FastifyInstance, database: Database, readiness: Readiness): void {
      measureRequests(app, metrics)
      stops.push(measureDatabase(database, metrics))
      if (jwts) stops.push(measureJwts(metrics))
      metrics.gauge('plant_store_unready',
        '1 for the reason why the service is not ready, all 0 when it is ready', async function () {
          const unready = await readiness()
          for (const reason of unreadyReasons) this.set({ reason }, reason === unready?.name ? 1 : 0)
        }, 'reason')
    },

    async close (): Promise<void> {
      for (const stop of stops) stop()
      server.close()
      server.closeAllConnections()
      await once(server, 'close')
    }
  }
}

async function listen (registry: Registry, host: string, port: number) {
  let rendered: Promise<Buffer> | undefined
  function render (): Promise<Buffer> {
    rendered ??= registry.metrics().then(Buffer.from).finally(() => {
      setTimeout(() => { rendered = undefined }, renderIntervalMs).unref()
    })
    return rendered
  }

  const server = createServer({
    connectionsCheckingInterval: 1000,
    headersTimeout: connectionTimeoutMs,
    requestTimeout: connectionTimeoutMs
  }, async ({ method, url }, response) => {
    if (method !== 'GET' || url !== '/metrics') return response.writeHead(404).end()
    const bytes = await render()
    // Close the connection, because 16 pipelined requests of 50 connections would block the event loop.
    response.writeHead(200, { 'content-type': registry.contentType, connection: 'close' }).end(bytes)
  })
  Object.assign(server, { timeout: connectionTimeoutMs, maxConnections })
  serializePipelining(server)
  server.listen(port, host)
  await once(server, 'listening').catch((cause) => {
    throw new Error(`metrics cannot listen on ${host}, port ${port}`, { cause })
  })
  return server
}
