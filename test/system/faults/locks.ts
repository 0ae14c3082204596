import pg from 'pg'
import { round } from '../../support/table.ts'
import { sql } from '../../support/database.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { createClient, errorNumber, type HttpResponse } from './client.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { createRandom } from './random.ts'
import type { Report } from './report.ts'

const { serve } = unmeasured

const users = ['locks-ada', 'locks-bo', 'locks-cy']
const plantsPerUser = 100
const statementTimeoutMs = 2000
const databaseSlow = 50304

/** Two instances write the same plants in batches of several owners; then an operator has a plant, or the table, locked. */
export async function locks (scope: Scope, postgres: Postgres, { seed, rounds }: { seed: number, rounds: number }): Promise<Report> {
  const random = createRandom(seed)
  const tokens = await createUsers(postgres.url, users)
  const operator = new pg.Client(postgres.url)
  await operator.connect()
  scope.teardown(() => operator.end())
  const environment = { DATABASE_URL: postgres.url, STATEMENT_TIMEOUT: `${statementTimeoutMs}ms` }
  const instances = await Promise.all([serve(scope, environment), serve(scope, environment)])
  // By instance, then by user.
  const clients = instances.map(({ address }) => tokens.map((token) => createClient(address, token)))
  scope.teardown(() => { for (const client of clients.flat()) client.close() })
  const [ofFirst = []] = clients
  const deadlocks = async () => Number((await sql(postgres.url, 'select sum(deadlocks) from pg_stat_database'))[0]?.sum)
  const stored = async () => (await sql(postgres.url, 'select owner, id::int from plants where owner = any($1)', [users]))
    .map(({ owner, id }) => `${owner} ${id}`).sort()

  /** Plants that one statement has stored. */
  const mostTogether = async () => Number((await sql(postgres.url, `select max(plants) from
    (select count(*) as plants from plants where owner = any($1) group by xmin) as statement`, [users]))[0]?.max)

  const before = await deadlocks()
  let together = 0
  const responses: HttpResponse[] = []
  for (let round = 0; round < rounds; round++) {
    for (const verb of ['create', 'delete'] as const) {
      // The first of each instance waits for the lock and the others for the
      // first: two batches set out at the same moment, in another order each time.
      await operator.query('begin; lock table plants in exclusive mode')
      const asked = clients.flatMap((ofInstance) => random.shuffled(ofInstance.flatMap((client) => plantIds.map((id) => ({ client, id }))))
        .map(({ client, id }) => verb === 'create' ? client.create({ id, name: 'Monstera' }) : client.delete(id)))
      await Promise.all(clients.map(([client]) => client?.get('/livez')))
      await operator.query('commit')
      responses.push(...await Promise.all(asked))
      together = Math.max(together, await mostTogether())
    }
  }
  const deadlocked = await deadlocks() - before

  const createAll = () => Promise.all(ofFirst.flatMap((client) => plantIds.map((id) => client.create({ id, name: 'Monstera' }))))
  const deleteAll = () => Promise.all(ofFirst.map((client) => Promise.all(plantIds.map((id) => client.delete(id)))))
  await createAll()

  await operator.query('begin')
  await operator.query('select from plants where owner = $1 and id = $2 for update', [users.at(-1), plantIds.at(-1)])
  const ofUsers = await deleteAll()
  await operator.query('rollback')
  const [locked, ...neighbours] = ofUsers.flat().reverse() as [HttpResponse, ...HttpResponse[]]
  const left = await stored()

  await createAll()
  await operator.query('begin; lock table plants in access exclusive mode')
  const blocked = (await deleteAll()).flat()
  await operator.query('rollback')

  const odd = responses.filter(({ status }) => ![200, 204, 400, 404].includes(status))
  const harmed = neighbours.filter(({ status }) => status !== 204)
  const dishonest = blocked.filter((response) => errorNumber(response) !== databaseSlow)
  const slowest = (all: HttpResponse[]) => round(Math.max(...all.map(({ ms }) => ms)))
  const when = (isSo: boolean, breach: string) => isSo ? [breach] : []
  return {
    title: 'Batches that meet locks',
    head: ['', 'writes', 'failed', 'slowest response, ms'],
    rows: [
      ['two instances, the same plants at once', responses.length, odd.length, slowest(responses)],
      ['a plant locked by an operator: its own delete', 1, Number(locked.status === 503), slowest([locked])],
      ['deletes of others in the same batch', neighbours.length, harmed.length, slowest(neighbours)],
      ['the table locked by an operator', blocked.length, blocked.filter(({ status }) => status === 503).length, slowest(blocked)]
    ],
    notes: [`Deadlocks: ${deadlocked}. STATEMENT_TIMEOUT=${statementTimeoutMs}ms; a batch that runs into it is tried again plant by plant.`],
    breaches: [
      ...when(together < 2, 'no batch of several plants, so nothing was tested'),
      ...when(deadlocked > 0, `${deadlocked} deadlocks`),
      ...when(odd.length > 0, `${odd.length} writes failed, such as ${odd[0]?.status} ${odd[0]?.body}`),
      ...when(locked.status !== 503, `the locked plant: ${locked.status} ${locked.body}`),
      ...when(harmed.length > 0, `${harmed.length} neighbours of the locked plant failed, such as ${harmed[0]?.status} ${harmed[0]?.body}`),
      ...when(left.join() !== `${users.at(-1)} ${plantIds.at(-1)}`, `of all plants and the locked one these are left: ${left.join()}`),
      ...when(dishonest.length > 0, `with the table locked: ${dishonest[0]?.status} ${dishonest[0]?.body}`),
    ],
    misses: []
  }
}

const plantIds = Array.from({ length: plantsPerUser }, (_, id) => id)
