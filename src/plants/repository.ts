// Creates, deletes and lists plants in the database.
import type { Config } from '../config.ts'
import type { Database } from '../database/database.ts'
import { wasRolledBack } from '../database/pg-errors.ts'
import { Batcher, singles, type Identity, type Work } from '../scheduling/batcher.ts'
import type { MemoryBudget } from '../scheduling/memory-budget.ts'
import { textFields } from './columns.ts'
import { createLists } from './lists.ts'
import type { NewPlant } from './schemas.ts'
import { deleteAll, insertAll, maxWrites, type PlantKey, type PlantToStore } from './writes.ts'

export type Plants = ReturnType<typeof createPlants>

type PlantsConfig = Pick<Config, 'WRITE_BATCH' | 'MAX_QUEUED' | 'BODY_LIMIT'>

/** The most lists in a statement, and the most statements in flight. More of either delays other users. */
const [maxLists, maxListBatches] = [32, 2]

/** The returned functions read and change only the plants of the identity's user. */
export function createPlants (database: Database, config: PlantsConfig, budget: MemoryBudget) {
  const { WRITE_BATCH: writeBatch, MAX_QUEUED: maxQueued, BODY_LIMIT: bodyLimit } = config
  // On Citus, do not batch by default: one lost node would make the whole batch fail.
  const batchSize = () => writeBatch ?? (database.isDistributed() ? 1 : Infinity)
  const batching = (maxItems: number, maxInFlight: number) => ({
    limits: () => batchSize() === 1 ? singles : { maxItems: Math.min(maxItems, batchSize()), maxInFlight },
    maxQueued,
    isRetryable: wasRolledBack
  })
  const creates = new Batcher((plants: Array<PlantToStore & Work>) => insertAll(database, plants),
    { name: 'create', ...batching(maxWrites, 1) })
  const deletes = new Batcher((keys: Array<PlantKey & Work>) => deleteAll(database, keys),
    { name: 'delete', ...batching(maxWrites, 1) })

  return {
    /** Returns false, and changes nothing, if the user already has a plant with this id. */
    create: (identity: Identity, plant: NewPlant): Promise<boolean> =>
      creates.add({ identity, user: identity.user, id: plant.id.toString(), plant, size: sizeOf(plant) }),

    /** Returns false if the user has no plant with this id. */
    delete: (identity: Identity, id: string): Promise<boolean> =>
      deletes.add({ identity, user: identity.user, id }),

    list: createLists(database, budget, bodyLimit, batching(maxLists, maxListBatches))
  }
}

const sizeOf = (plant: NewPlant) => textFields.reduce((sum, field) => sum + (plant[field]?.length ?? 0), 0)
