// The users and plants of the streams.
import pg from 'pg'
import { plantsTable } from '../../../../src/plants/plant.ts'
import { createUsers } from '../../faults/postgres.ts'
import { sql } from '../../../support/database.ts'
import type { Program, Scope } from '../../../support/program.ts'
import type { Plants } from '../oracle.ts'
import { seeds } from './items.ts'

export type Store = ReturnType<typeof openStore>

export function openStore (scope: Scope, url: string) {
  const pool = new pg.Pool({ connectionString: url, max: 4 }).on('error', () => {})
  scope.teardown(() => pool.end())
  let users: Promise<Array<{ name: string, token: string }>> = Promise.resolve([])
  let created = 0

  async function createSeeded () {
    const names = Array.from({ length: 200 }, () => `stream ${created++}`)
    const tokens = await createUsers(url, names)
    await pool.query(`insert into plants (owner, id, name) select owner, id, name
      from unnest($1::text[]) owner, unnest($2::bigint[], $3::text[]) seed (id, name)`,
    [names, [...seeds.keys()].map(String), [...seeds.values()]])
    return names.map((name, index) => ({ name, token: tokens[index] as string }))
  }

  return {
    /** Each stream has a user of its own, because the requests of a client that has left may run later. */
    async nextUser () {
      for (;;) {
        const current = users
        const user = (await current).pop()
        if (user !== undefined) return user
        if (users === current) users = createSeeded()
      }
    },

    async readNames (user: string): Promise<Map<bigint, string>> {
      return new Map([...await readPlants(pool, user)].map(([id, { name }]) => [id, name]))
    }
  }
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
