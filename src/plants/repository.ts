// Creates, deletes and lists plants in the database.
import type { Writable } from 'node:stream'
import type { Database } from '../database/database.ts'
import { wasRolledBack } from '../database/pg-errors.ts'
import { Batcher, singles } from '../scheduling/batcher.ts'
import type { MemoryBudget } from '../scheduling/memory-budget.ts'
import { textFields } from './columns.ts'
import { Lists } from './lists.ts'
import { listProbe, type ListRange } from './pages.ts'
import type { NewPlant } from './schemas.ts'
import { deleteAll, deleteProbe, insertAll, maxCreates, type PlantKey, type PlantToCreate } from './writes.ts'

export type Plants = ReturnType<typeof createPlants>

interface PlantsOptions {
  /** How many requests may share a statement: by default 500, or 1 on Citus. */
  writeBatch: number | undefined
  /** How many requests of each kind may be queued. */
  maxQueued: number
  /** The maximum size of a request body in bytes, and therefore of a plant. */
  bodyLimit: number
  budget: MemoryBudget
}

/** The most lists in a statement, and the most statements in flight. More of either delays other users. */
const [maxLists, maxListBatches] = [16, 4]
const defaultWriteBatch = 500

/** The returned functions read and change only the plants of `user`. */
export function createPlants (database: Database, options: PlantsOptions) {
  const { writeBatch, maxQueued, bodyLimit, budget } = options
  const batching = (maxItems: number, maxInFlight: number) => {
    const batch = { maxItems: Math.min(maxItems, writeBatch ?? defaultWriteBatch), maxInFlight }
    // On Citus, do not batch by default: one lost node would make the whole batch fail.
    const isSingle = () => batch.maxItems === 1 || (writeBatch === undefined && database.isDistributed())
    return { limits: () => isSingle() ? singles : batch, maxQueued, isRetryable: wasRolledBack }
  }
  const creates = new Batcher((plants: PlantToCreate[]) => insertAll(database, plants),
    { name: 'create', ...batching(maxCreates, 1) })
  const deletes = new Batcher((keys: PlantKey[]) => deleteAll(database, keys),
    { name: 'delete', ...batching(Infinity, 1) })
  const lists = new Lists({
    database, budget, maxPlantBytes: bodyLimit, batch: batching(maxLists, maxListBatches)
  })
  database.addProbe('plants', ...listProbe)
  database.addProbe('plants', ...deleteProbe)

  return {
    /** Returns false, and changes nothing, if the user already has a plant with this id. */
    create: (user: string, plant: NewPlant): Promise<boolean> =>
      creates.add({ user, id: plant.id.toString(), plant, size: sizeOf(plant) }),

    /** Returns false if the user has no plant with this id. */
    delete: (user: string, id: string): Promise<boolean> => deletes.add({ user, id }),

    /** Returns the plants of a short list, or the pages of a long list, in ascending order of id. */
    list: (user: string, range: ListRange, response: Writable) => lists.list(user, range, response)
  }
}

const sizeOf = (plant: NewPlant) => textFields.reduce((sum, field) => sum + (plant[field]?.length ?? 0), 0)
