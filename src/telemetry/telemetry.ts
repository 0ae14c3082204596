// Opens metrics and traces. Loads each module only if the configuration enables it.
import type { FastifyInstance } from 'fastify'
import type { Config } from '../config.ts'
import type { Database } from '../database/database.ts'
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
  const observers: Telemetry[] = []
  if (config.METRICS_PORT !== undefined) {
    observers.push(await (await import('./metrics.ts')).openMetrics(config))
  }
  if (config.OTEL_EXPORTER_OTLP_ENDPOINT !== undefined) {
    observers.push((await import('./traces.ts')).openTraces(config))
  }
  return observers
}
