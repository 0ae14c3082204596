// Plants past the service, for tests of how it lists them.
import { sql } from './database.ts'

export interface StoredPlant { id: bigint, name: string, tag?: string }

export async function storePlants (url: string, owner: string, plants: StoredPlant[]): Promise<void> {
  await sql(url, `insert into plants (owner, id, name, tag)
    select $1, * from unnest($2::bigint[], $3::text[], $4::text[])`,
  [owner, plants.map(({ id }) => id), plants.map(({ name }) => name), plants.map(({ tag }) => tag)])
}

/** What a list of them has. */
export const shown = (plants: StoredPlant[]) =>
  plants.map(({ name, tag }) => ({ name, ...tag !== undefined && { tag } }))
