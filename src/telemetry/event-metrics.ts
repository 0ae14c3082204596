// Metrics of statements, batches, database connections, the token cache, JWTs and the provider's keys.
import type { Database } from '../database/database.ts'
import {
  batchEvents, connectionEvents, durabilityEvents, durabilitySettings, jwtEvents, keyEvents, statementEvents,
  tokenEvents
} from '../events.ts'
import { durationBuckets, type Metrics } from './registry.ts'

const batchSizeBuckets = [1, 2, 5, 10, 20, 50, 100, 200, 500]

export function measureDatabase (database: Database, { counter, gauge, histogram }: Metrics): void {
  gauge('plant_store_statements_pending', 'Statements that are queued or in flight, by kind', function () {
    for (const [kind, count] of Object.entries(database.pending())) this.set({ kind }, count)
  }, 'kind')
  const durations = histogram('plant_store_statement_duration_seconds',
    'Time from sending a statement to its result', durationBuckets, 'statement')
  const failed = counter('plant_store_statements_failed_total', 'Statements that failed', 'statement')
  statementEvents.subscribe(({ name, startedAt, error }) => {
    durations.observe({ statement: name }, (performance.now() - startedAt) / 1000)
    failed.inc({ statement: name }, error === undefined ? 0 : 1)
  })
  const batches = histogram('plant_store_batch_size',
    'Requests that shared a statement', batchSizeBuckets, 'batch')
  batchEvents.subscribe(({ name, items }) => batches.observe({ batch: name }, items))
  const connections = counter('plant_store_database_connections_total',
    'Database connections that were opened, were lost or timed out', 'event', ['opened', 'lost', 'timed_out'])
  connectionEvents.subscribe(({ event }) => connections.inc({ event }))
  const tokens = counter('plant_store_token_cache_requests_total',
    'Look-ups in the token cache, by result', 'result', ['hit', 'miss'])
  tokenEvents.subscribe(({ hit }) => tokens.inc({ result: hit ? 'hit' : 'miss' }))
  let off: string[] = []
  durabilityEvents.subscribe((event) => { off = event.off })
  gauge('plant_store_unsafe_setting', '1 for a durability setting of PostgreSQL that is off', function () {
    for (const setting of durabilitySettings) this.set({ setting }, off.includes(setting) ? 1 : 0)
  }, 'setting')
}

export function measureJwts ({ counter, gauge }: Metrics): void {
  const checks = counter('plant_store_jwt_checks_total',
    'Checks of JWTs, by result; cached ones check no signature', 'result',
    ['verified', 'cached', 'rejected', 'unavailable'])
  jwtEvents.subscribe(({ result }) => checks.inc({ result }))
  const fetches = counter('plant_store_jwt_key_fetches_total',
    'Fetches of the identity provider\'s keys, by result', 'result', ['succeeded', 'failed'])
  let fetchedAt = performance.now()
  gauge('plant_store_jwt_keys_age_seconds',
    'Time since the keys of the identity provider were fetched, or since the start',
    function () { this.set((performance.now() - fetchedAt) / 1000) })
  keyEvents.subscribe(({ result }) => {
    fetches.inc({ result })
    if (result === 'succeeded') fetchedAt = performance.now()
  })
}
