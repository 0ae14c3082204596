// Measures the same load on a small store and on a store of 10,000,000 plants.
import type { Duration } from './measure.ts'
import { alongside, createDatabase, withClient, type Contender, type Postgres } from './running.ts'
import { keepStore, throughput, type Result } from './throughput.ts'

// `username` maps a token's index to a user. In the small store, all users have tokens. In the large store,
// every 500th user has tokens.
const sizes = [
  { name: 'small', title: '1,000 plants', users: 50, username: (token: number) => String(token % 50) },
  {
    name: 'large',
    title: '10,000,000 plants',
    users: 500_000,
    username: (token: number) => String(token % 1000 * 500)
  }
]

export async function large (postgres: Postgres, service: Contender, duration: Duration): Promise<Result[]> {
  for (const { name, users, username } of sizes) {
    await createDatabase(postgres.url(name), username)
    await withClient(postgres.url(name), (client) => client.query(`insert into plants (owner, id, name, tag)
      select owner::text, id, 'Monstera deliciosa ' || id, 'indoor'
      from generate_series(0, ${users - 1}) owner, generate_series(1, 20) id order by 1, 2`))
  }
  let results: Result[] = []
  const stores = sizes.map(({ name, title }) => ({ ...service, name, title }))
  await alongside(postgres, stores, async (entries) => {
    results = await throughput(entries, {
      loads: ['list', 'create'], connections: 64, ...duration, refill: keepStore
    })
  })
  return results
}
