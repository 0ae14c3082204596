// Stores plants directly in the database, for tests of lists.
import { sql } from './database.ts'

export interface StoredPlant { id: bigint, name: string, tag?: string }

export async function storePlants (url: string, user: string, plants: StoredPlant[]): Promise<void> {
  await sql(url, `insert into plants (owner, id, name, tag)
    select $1, * from unnest($2::bigint[], $3::text[], $4::text[])`,
  [user, plants.map(({ id }) => id), plants.map(({ name }) => name), plants.map(({ tag }) => tag)])
}

/** The plants as in the response to a list. */
export const shown = (plants: StoredPlant[]) =>
  plants.map(({ name, tag }) => ({ name, ...tag !== undefined && { tag } }))
