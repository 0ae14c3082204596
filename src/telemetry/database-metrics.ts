// Metrics of statements, batches, database connections and the token cache.
import type { Database } from '../database/database.ts'
import { batchEvents, connectionEvents, statementEvents, tokenEvents } from '../events.ts'
import { durationBuckets, listen, type Metrics } from './registry.ts'

const batchSizeBuckets = [1, 2, 5, 10, 20, 50, 100, 200, 500]

/** Returns a function that stops the measurement. */
export function measureDatabase (database: Database, { counter, gauge, histogram }: Metrics): () => void {
  gauge('plant_store_statements_pending', 'Statements that are queued or in flight, by kind', function () {
    for (const [kind, count] of Object.entries(database.pending())) this.set({ kind }, count)
  }, 'kind')
  const durations = histogram('plant_store_statement_duration_seconds',
    'Time from sending a statement to its result', durationBuckets, 'statement')
  const failed = counter('plant_store_statements_failed_total', 'Statements that failed', 'statement')
  const batches = histogram('plant_store_batch_size',
    'Requests that shared a statement', batchSizeBuckets, 'batch')
  const connections = counter('plant_store_database_connections_total',
    'Database connections that were opened, were lost or timed out', 'event')
  const tokens = counter('plant_store_token_cache_requests_total',
    'Look-ups in the token cache, by result', 'result')
  for (const event of ['opened', 'lost', 'timed_out']) connections.inc({ event }, 0)
  for (const result of ['hit', 'miss']) tokens.inc({ result }, 0)

  const stops = [
    listen(statementEvents, ({ name, startedAt, error }) => {
      durations.observe({ statement: name }, (performance.now() - startedAt) / 1000)
      failed.inc({ statement: name }, error === undefined ? 0 : 1)
    }),
    listen(batchEvents, ({ name, items }) => batches.observe({ batch: name }, items)),
    listen(connectionEvents, ({ event }) => connections.inc({ event })),
    listen(tokenEvents, ({ hit }) => tokens.inc({ result: hit ? 'hit' : 'miss' }))
  ]
  return () => { for (const stop of stops) stop() }
}
