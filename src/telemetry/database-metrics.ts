// The figures of what the service asks its database, as the other rooms tell them.
import { Counter, Gauge, Histogram, type Registry } from '@prometheus-io/client'
import type { Database } from '../database/database.ts'
import { batchEvents, connectionEvents, statementEvents, tokenEvents, type Events } from '../events.ts'
import { seconds } from './buckets.ts'

const sizes = [1, 2, 5, 10, 20, 50, 100, 200, 500]

/** Measures until the function it returns is called. */
export function measureDatabase (database: Database, registry: Registry): () => void {
  registry.registerMetric(new Gauge({
    name: 'plant_store_statements_waiting',
    help: 'Statements that wait for their turn, for a connection or for their answer',
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
    help: 'From sending a statement to its answer',
    labelNames: ['statement'],
    buckets: seconds,
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
    help: 'Requests that went together',
    labelNames: ['batch'],
    buckets: sizes,
    registers
  })
  return listen(batchEvents, ({ name, items }) => batch.observe({ batch: name }, items))
}

function countConnections (registers: Registry[]): () => void {
  const connections = new Counter({
    name: 'plant_store_database_connections_total',
    help: 'Connections to the database, by what became of them',
    labelNames: ['event'],
    registers
  })
  for (const event of ['opened', 'lost', 'timed_out']) connections.inc({ event }, 0)
  return listen(connectionEvents, ({ event }) => connections.inc({ event }))
}

function countTokens (registers: Registry[]): () => void {
  const tokens = new Counter({
    name: 'plant_store_token_cache_requests_total',
    help: 'Well-formed tokens, by whether they were remembered',
    labelNames: ['result'],
    registers
  })
  for (const result of ['hit', 'miss']) tokens.inc({ result }, 0)
  return listen(tokenEvents, ({ hit }) => tokens.inc({ result: hit ? 'hit' : 'miss' }))
}

/** Listens until the function it returns is called. */
function listen<Event> (events: Events<Event>, listener: (event: Event) => void): () => void {
  events.subscribe(listener)
  return () => events.unsubscribe(listener)
}
