// The options that all batchers of a domain's statements share.
import type { Config } from '../config.ts'
import type { Database } from '../database/database.ts'
import { wasRolledBack } from '../database/pg-errors.ts'
import { unbatched, type BatcherOptions } from '../scheduling/batcher.ts'

export type GatewayConfig = Pick<Config, 'WRITE_BATCH' | 'MAX_QUEUED' | 'BODY_LIMIT'>

/** With `unbatched` as limits, each item gets a statement of its own. */
export const batchOptions = (
  database: Database, { WRITE_BATCH, MAX_QUEUED }: GatewayConfig, limits: BatcherOptions['limits']
): Omit<BatcherOptions, 'name'> => ({
  limits: WRITE_BATCH === 1
    ? unbatched
    : { ...limits, maxItems: Math.min(limits.maxItems, WRITE_BATCH ?? Infinity) },
  // On Citus, do not batch by default: one lost node would make the whole batch fail.
  isOneByOne: WRITE_BATCH === undefined ? database.isDistributed : undefined,
  maxQueued: MAX_QUEUED,
  isRetryable: wasRolledBack
})
