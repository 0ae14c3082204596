// Metrics for Prometheus, on a port of their own: loaded only where METRICS_PORT is set.
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { collectDefaultMetrics, Gauge, Registry } from '@prometheus-io/client'
import type { FastifyInstance } from 'fastify'
import type { Database } from '../database/database.ts'
import { createServer } from '../http/node-http.ts'
import { measureDatabase } from './database-metrics.ts'
import { unreadyReasons, type Readiness } from './health.ts'
import { measureRequests } from './request-metrics.ts'

export interface MetricsOptions {
  host: string
  /** 0: any free one. */
  port: number
  version: string
  /** The newest migration that this build knows. */
  schema: string
}

// Of Node's own metrics those whose names break Prometheus' rules are left out.
const misnamed = ['active_handles_total', 'active_requests_total', 'active_resources_total',
  'eventloop_utilization_histogram', 'eventloop_utilization_summary']

/**
 * An observer with a server of its own: rejects when that can't listen. Every label has its
 * values from the start, so that no ratio is empty.
 */
export async function openMetrics ({ host, port, version, schema }: MetricsOptions) {
  const registry = new Registry()
  const registers = [registry]
  collectDefaultMetrics({ register: registry })
  for (const name of misnamed) registry.removeSingleMetric(`nodejs_${name}`)
  const labelNames = ['version', 'schema'] as const
  const info = new Gauge({ name: 'plant_store_build_info', help: 'Always 1', labelNames, registers })
  info.set({ version, schema }, 1)

  const server = createServer(async (request, response) => {
    if (request.method !== 'GET' || request.url !== '/metrics') return response.writeHead(404).end()
    const text = await registry.metrics()
    response.writeHead(200, { 'content-type': registry.contentType }).end(text)
  })
  // Who is allowed in here may still be slow.
  server.requestTimeout = 5000
  server.listen(port, host)
  await once(server, 'listening').catch((cause) => {
    throw new Error(`metrics cannot listen on ${host}, port ${port}`, { cause })
  })
  const stops: Array<() => void> = []

  return {
    url: `http://${host}:${(server.address() as AddressInfo).port}/metrics`,

    watch (app: FastifyInstance, database: Database, readiness: Readiness): void {
      measureRequests(app, registry)
      stops.push(measureDatabase(database, registry))
      showReadiness(readiness, registry)
    },

    async close (): Promise<void> {
      for (const stop of stops) stop()
      server.close()
      server.closeAllConnections()
      await once(server, 'close')
    }
  }
}

function showReadiness (readiness: Readiness, registry: Registry): void {
  registry.registerMetric(new Gauge({
    name: 'plant_store_unready',
    help: '1 for the reason why the service is not ready; all 0 when it is',
    labelNames: ['reason'],
    registers: [],
    async collect () {
      const reason = await readiness()
      for (const one of unreadyReasons) this.set({ reason: one }, one === reason?.name ? 1 : 0)
    }
  }))
}
