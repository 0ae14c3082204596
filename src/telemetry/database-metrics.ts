// Metrics of statements, batches, database connections and the token cache.
import { Counter, Gauge, Histogram, type Registry } from '@prometheus-io/client'
import type { Database } from '../database/database.ts'
import { batchEvents, connectionEvents, statementEvents, tokenEvents, type Events } from '../events.ts'
import { durationBuckets } from './buckets.ts'

const batchSizeBuckets = [1, 2, 5, 10, 20, 50, 100, 200, 500]

/** Returns a function that ends the measurement. */
export function measureDatabase (database: Database, registry: Registry): () => void {
  registry.registerMetric(new Gauge({
    name: 'plant_store_statements_pending',
    help: 'Statements that are queued or in flight, by kind',
    labelNames: ['kind'],
    registers: [],
    collect () { for (const [kind, count] of Object.entries(database.pending())) this.set({ kind }, count) }
  }))
  const registers = [registry]
  const stops = [
    measureStatements(registers),
    measureBatches(registers),
    countConnections(registers),
    countTokens(registers)
  ]
  return () => { for (const stop of stops) stop() }
}

function measureStatements (registers: Registry[]): () => void {
  const duration = new Histogram({
    name: 'plant_store_statement_duration_seconds',
    help: 'Time from sending a statement to its result',
    labelNames: ['statement'],
    buckets: durationBuckets,
    registers
  })
  const failed = new Counter({
    name: 'plant_store_statements_failed_total',
    help: 'Statements that failed',
    labelNames: ['statement'],
    registers
  })
  return listen(statementEvents, ({ name, startedAt, error }) => {
    duration.observe({ statement: name }, (performance.now() - startedAt) / 1000)
    failed.inc({ statement: name }, error === undefined ? 0 : 1)
  })
}

function measureBatches (registers: Registry[]): () => void {
  const batch = new Histogram({
    name: 'plant_store_batch_size',
    help: 'Requests that shared a statement',
    labelNames: ['batch'],
    buckets: batchSizeBuckets,
    registers
  })
  return listen(batchEvents, ({ name, items }) => batch.observe({ batch: name }, items))
}

function countConnections (registers: Registry[]): () => void {
  const connections = new Counter({
    name: 'plant_store_database_connections_total',
    help: 'Database connections that were opened, were lost or timed out',
    labelNames: ['event'],
    registers
  })
  for (const event of ['opened', 'lost', 'timed_out']) connections.inc({ event }, 0)
  return listen(connectionEvents, ({ event }) => connections.inc({ event }))
}

function countTokens (registers: Registry[]): () => void {
  const tokens = new Counter({
    name: 'plant_store_token_cache_requests_total',
    help: 'Look-ups in the token cache, by result',
    labelNames: ['result'],
    registers
  })
  for (const result of ['hit', 'miss']) tokens.inc({ result }, 0)
  return listen(tokenEvents, ({ hit }) => tokens.inc({ result: hit ? 'hit' : 'miss' }))
}

/** Returns a function that removes the listener. */
function listen<Event> (events: Events<Event>, listener: (event: Event) => void): () => void {
  events.subscribe(listener)
  return () => events.unsubscribe(listener)
}
