// The figures of what the service asks its database, as the other rooms tell them.
import { Counter, Gauge, Histogram, type Registry } from '@prometheus-io/client'
import type { Database } from '../database/database.ts'
import { batchEvents, connectionEvents, statementEvents, tokenEvents, type Events } from '../events.ts'

const seconds = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]
const sizes = [1, 2, 5, 10, 20, 50, 100, 200, 500]

/** Until the function it returns is called. */
export function measureDatabase (database: Database, registry: Registry): () => void {
  registry.registerMetric(new Gauge({
    name: 'plant_store_statements_waiting',
    help: 'Statements that wait for a connection or for their answer',
    labelNames: ['kind'],
    registers: [],
    collect () { for (const [kind, count] of Object.entries(database.waiting())) this.set({ kind }, count) }
  }))
  const duration = new Histogram({
    name: 'plant_store_statement_duration_seconds',
    help: 'From sending a statement to its answer',
    labelNames: ['statement'],
    buckets: seconds,
    registers: [registry]
  })
  const failed = new Counter({
    name: 'plant_store_statements_failed_total',
    help: 'Statements that failed',
    labelNames: ['statement'],
    registers: [registry]
  })
  const batch = new Histogram({
    name: 'plant_store_batch_size',
    help: 'Requests that went together',
    labelNames: ['batch'],
    buckets: sizes,
    registers: [registry]
  })
  const connections = new Counter({
    name: 'plant_store_database_connections_total',
    help: 'Connections to the database, by what became of them',
    labelNames: ['event'],
    registers: [registry]
  })
  const tokens = new Counter({
    name: 'plant_store_token_cache_requests_total',
    help: 'Well-formed tokens, by whether they were remembered',
    labelNames: ['result'],
    registers: [registry]
  })
  for (const event of ['opened', 'lost', 'given_up']) connections.inc({ event }, 0)
  for (const result of ['hit', 'miss']) tokens.inc({ result }, 0)

  const stops = [
    listen(statementEvents, ({ name, startedAt, error }) => {
      duration.observe({ statement: name }, (performance.now() - startedAt) / 1000)
      failed.inc({ statement: name }, error === undefined ? 0 : 1)
    }),
    listen(batchEvents, ({ name, items }) => batch.observe({ batch: name }, items)),
    listen(connectionEvents, ({ event }) => connections.inc({ event })),
    listen(tokenEvents, ({ isRemembered }) => tokens.inc({ result: isRemembered ? 'hit' : 'miss' }))
  ]
  return () => { for (const stop of stops) stop() }
}

function listen<Event> (events: Events<Event>, listener: (event: Event) => void): () => void {
  events.subscribe(listener)
  return () => events.unsubscribe(listener)
}
