// Metrics of JWTs and of the identity provider's keys.
import { jwtEvents, keyEvents } from '../events.ts'
import { listen, type Metrics } from './registry.ts'

/** Returns a function that stops the measurement. */
export function measureJwts ({ counter, gauge }: Metrics): () => void {
  const checks = counter('plant_store_jwt_checks_total',
    'Checks of JWTs, by result; cached ones check no signature', 'result')
  const fetches = counter('plant_store_jwt_key_fetches_total',
    'Fetches of the identity provider\'s keys, by result', 'result')
  let fetchedAt = performance.now()
  gauge('plant_store_jwt_keys_age_seconds',
    'Time since the keys of the identity provider were fetched, or since the start',
    function () { this.set((performance.now() - fetchedAt) / 1000) })
  for (const result of ['verified', 'cached', 'rejected', 'unavailable']) checks.inc({ result }, 0)
  for (const result of ['succeeded', 'failed']) fetches.inc({ result }, 0)

  const stops = [
    listen(jwtEvents, ({ result }) => checks.inc({ result })),
    listen(keyEvents, ({ result }) => {
      fetches.inc({ result })
      if (result === 'succeeded') fetchedAt = performance.now()
    })
  ]
  return () => { for (const stop of stops) stop() }
}
