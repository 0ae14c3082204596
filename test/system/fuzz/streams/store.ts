// The users and plants of the streams.
import type pg from 'pg'
import { plantsTable } from '../../../../src/plants/plant.ts'
import { createUsers } from '../../faults/postgres.ts'
import { sql } from '../../../support/database.ts'
import type { Program } from '../../../support/program.ts'
import type { Plants } from '../oracle.ts'
import { seeds } from './items.ts'

let created = 0

/** Each stream has a user of its own, because the requests of a client that has left may run later. */
export async function createSeeded (url: string, count: number) {
  const names = Array.from({ length: count }, () => `stream ${created++}`)
  const tokens = await createUsers(url, names)
  await sql(url, `insert into plants (owner, id, name) select owner, id, name
    from unnest($1::text[]) owner, unnest($2::bigint[], $3::text[]) seed (id, name)`,
  [names, [...seeds.keys()].map(String), [...seeds.values()]])
  return names.map((name, index) => ({ name, token: tokens[index] as string }))
}

/** Returns the stored plants of the user, with the fields as the service lists them. */
export async function readPlants (pool: pg.Pool, user: string): Promise<Plants> {
  const { rows } = await pool.query<string[]>({
    text: `select id, ${plantsTable.selected} from plants where owner = $1`, values: [user], rowMode: 'array'
  })
  return new Map(rows.map(([id = '', ...values]) => {
    const fields = plantsTable.fields.map((field, index) => [field, values[index]])
    return [BigInt(id), Object.fromEntries(fields.filter(([, value]) => value !== null))]
  }))
}

/** Stores and reads a list that exceeds the socket buffers. */
export async function createLarge (url: string, { address }: Program) {
  const [token = ''] = await createUsers(url, ['large list'])
  await sql(url, `insert into plants (owner, id, name)
    select 'large list', id, repeat('x', 4000) from generate_series(1, 1500) id`)
  const response = await fetch(`${address}/plants`, { headers: { authorization: `Bearer ${token}` } })
  return { token, list: await response.text() }
}
