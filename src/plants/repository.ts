// The plants in the database, by verbs.
import { batch } from '../database/batch.ts'
import type { Database } from '../database/database.ts'
import { texts } from './columns.ts'
import { selectPage, smallestId, type Page, type Rest } from './pages.ts'
import type { NewPlant } from './schemas.ts'
import { deleteAll, insertAll, type OwnedPlant, type PlantKey } from './writes.ts'

export interface PlantsOptions {
  writeBatch: number
  maxWaiting: number
}

export type Plants = ReturnType<typeof createPlants>

/** The plants in the database. Each verb acts for `owner` alone: other users' plants are neither seen nor touched. */
export function createPlants (database: Database, { writeBatch, maxWaiting }: PlantsOptions) {
  const options = { maxItems: writeBatch, maxWaiting }
  const insert = batch((plants: OwnedPlant[]) => insertAll(database, plants), sizeOf, { name: 'create', ...options })
  const remove = batch((keys: PlantKey[]) => deleteAll(database, keys), () => 0, { name: 'delete', ...options })

  return {
    /** False when the owner already has a plant with this id, which stays as it is. */
    create: (owner: string, plant: NewPlant): Promise<boolean> => insert({ owner, id: plant.id.toString(), plant }),

    /** False when the owner has no plant with this id. */
    delete: (owner: string, id: string): Promise<boolean> => remove({ owner, id }),

    /** The first page of the owner's plants, `limit` at most in all. */
    list: (owner: string, limit = Infinity): Promise<Page> => selectPage(database, { owner, from: smallestId, limit }, false),

    /** The next page, for a list that is being answered already. */
    listMore: (owner: string, rest: Rest): Promise<Page> => selectPage(database, { owner, ...rest }, true)
  }
}

/** In characters. */
const sizeOf = ({ plant }: OwnedPlant) => texts.reduce((sum, field) => sum + (plant[field]?.length ?? 0), 0)
