// Opens metrics and traces. Loads each module only if the configuration enables it.
import type { FastifyInstance } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import type { Config } from '../config.ts'
import type { Database } from '../database/database.ts'
import { newestMigration } from '../database/migrate.ts'
import type { Readiness } from './health.ts'

export interface Telemetry {
  /** The URL of the metrics. Undefined for traces. */
  url?: string
  /** Call this on the root instance before any route is added. */
  instrument (app: FastifyInstance, database: Database, readiness: Readiness): void
  close (): Promise<void>
}

/** Rejects when the metrics port is taken. */
export async function openTelemetry (config: Config): Promise<Telemetry[]> {
  const { METRICS_PORT: port, OTEL_EXPORTER_OTLP_ENDPOINT: endpoint } = config
  const { version } = manifest
  const observers: Telemetry[] = []
  if (port !== undefined) {
    const { openMetrics } = await import('./metrics.ts')
    observers.push(await openMetrics(config, port, { version, schema: await newestMigration() }))
  }
  if (endpoint !== undefined) {
    observers.push((await import('./traces.ts')).openTraces(version, config))
  }
  return observers
}
