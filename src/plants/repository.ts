// The plants in the database, by verbs.
import type { Writable } from 'node:stream'
import { Batcher } from '../scheduling/batcher.ts'
import type { Database } from '../database/database.ts'
import { isStatementError, wasRolledBack } from '../database/pg-errors.ts'
import { texts } from './columns.ts'
import { createPageReader } from './page-reader.ts'
import { firstPage, selectFirstPages, selectNextPage, type Page, type PageRequest } from './pages.ts'
import type { NewPlant } from './schemas.ts'
import { deleteAll, insertAll, mostCreates, type OwnedPlant, type PlantKey } from './writes.ts'

export type Plants = ReturnType<typeof createPlants>

// So many lists in a statement, and so many statements at once. Fewer and larger ones cost
// PostgreSQL no less, and this process and that one wait for each other.
const [mostLists, listsAtOnce] = [16, 8]

/** Each verb acts for `owner` alone: other users' plants are neither seen nor touched. */
export function createPlants (database: Database, writeBatch: number) {
  const { maxQueued } = database
  const writes = { maxItems: writeBatch, maxInFlight: 1, maxQueued, isRetryable: wasRolledBack }
  // Where the engine has no such statement they are read one by one.
  const reads = {
    maxItems: Math.min(mostLists, writeBatch),
    maxInFlight: listsAtOnce,
    maxQueued,
    isRetryable: isStatementError,
    canRun: database.room.hasCapacity
  }
  const creates = new Batcher(
    (plants: OwnedPlant[]) => insertAll(database, plants), sizeOf,
    { name: 'create', ...writes, maxItems: Math.min(mostCreates, writeBatch) })
  const deletes = new Batcher(
    (keys: PlantKey[]) => deleteAll(database, keys), () => 0, { name: 'delete', ...writes })
  const lists = new Batcher(
    (requests: PageRequest[]) => selectFirstPages(database, requests), () => 0, { name: 'list', ...reads })

  return {
    /** False when the owner already has a plant with this id, which stays as it is. */
    create: (owner: string, plant: NewPlant): Promise<boolean> =>
      creates.add({ owner, id: plant.id.toString(), plant }),

    /** False when the owner has no plant with this id. */
    delete: (owner: string, id: string): Promise<boolean> => deletes.add({ owner, id }),

    /** The first page of an owner's plants, `limit` at most in all. Not read once its answer is destroyed. */
    list: (owner: string, limit = Infinity, answer?: Writable): Promise<Page> =>
      lists.add(firstPage(owner, limit, answer)),

    /** The pages after the first, as their reader takes them: one ahead at most, for who keeps up. */
    remainingPages: createPageReader((owner, rest, size, answer) =>
      selectNextPage(database, { owner, ...rest, size, answer })),

    /** To be called with how much of an answer with the owner's plants is in memory. */
    trackMemory: database.room.open
  }
}

/** In characters. */
const sizeOf = ({ plant }: OwnedPlant) => texts.reduce((sum, field) => sum + (plant[field]?.length ?? 0), 0)
