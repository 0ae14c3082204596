import pg from 'pg'
import { round } from '../../support/table.ts'
import { sql } from '../../support/database.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { createClient, errorNumber, type Client, type HttpResponse } from './client.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { createRandom } from './random.ts'
import type { Report } from './report.ts'

const { serve } = unmeasured

const users = ['locks-ada', 'locks-bo', 'locks-cy']
const plantsPerUser = 100
const statementTimeoutMs = 2000
const databaseSlow = 50304

/** Two instances of the service write the same plants. Later an operator locks a plant, then all plants. */
export async function locks (
  scope: Scope, postgres: Postgres, { seed, rounds }: { seed: number, rounds: number }
): Promise<Report> {
  const random = createRandom(seed)
  const tokens = await createUsers(postgres.url, users)
  const operator = new pg.Client(postgres.url)
  await operator.connect()
  scope.teardown(() => operator.end())
  const environment = { DATABASE_URL: postgres.url, STATEMENT_TIMEOUT: `${statementTimeoutMs}ms` }
  const instances = await Promise.all([serve(scope, environment), serve(scope, environment)])
  // Indexed by instance, then by user.
  const clients = instances.map(({ address }) => tokens.map((token) => createClient(address, token)))
  scope.teardown(() => { for (const client of clients.flat()) client.close() })
  const [ofFirst = []] = clients
  const ofUsers = async (text: string) => sql(postgres.url, text, [users])
  const deadlocks = async () =>
    Number((await sql(postgres.url, 'select sum(deadlocks) from pg_stat_database'))[0]?.sum)
  const stored = async () => (await ofUsers('select owner, id::int from plants where owner = any($1)'))
    .map(({ owner, id }) => `${owner} ${id}`).sort()

  // All plants of one batch have the same `xmin`.
  const largestBatch = async () => Number((await ofUsers(`select max(plants) from
    (select count(*) as plants from plants where owner = any($1) group by xmin) as statement`))[0]?.max)

  const before = await deadlocks()
  let together = 0
  const responses: HttpResponse[] = []
  for (let round = 0; round < rounds; round++) {
    for (const verb of ['create', 'delete'] as const) {
      // While the operator holds this lock, both instances queue writes. After the commit both instances
      // flush batches at the same time.
      await operator.query('begin; lock table plants in exclusive mode')
      const sent = clients.flatMap((ofInstance) =>
        random.shuffled(ofInstance.flatMap((client) => plantIds.map((id) => ({ client, id }))))
          .map(({ client, id }) =>
            verb === 'create' ? client.create({ id, name: 'Monstera' }) : client.delete(id)))
      await Promise.all(clients.map(([client]) => client?.get('/livez')))
      await operator.query('commit')
      responses.push(...await Promise.all(sent))
      together = Math.max(together, await largestBatch())
    }
  }
  const deadlocked = await deadlocks() - before

  const forEach = <Result>(act: (client: Client, id: number) => Promise<Result>) =>
    Promise.all(ofFirst.map((client) => Promise.all(plantIds.map((id) => act(client, id)))))
  const createAll = () => forEach((client, id) => client.create({ id, name: 'Monstera' }))
  const deleteAll = () => forEach((client, id) => client.delete(id))
  await createAll()

  await operator.query('begin')
  const [lockedUser, lockedId] = [users.at(-1), plantIds.at(-1)]
  await operator.query('select from plants where owner = $1 and id = $2 for update', [lockedUser, lockedId])
  const deleted = await deleteAll()
  await operator.query('rollback')
  const [locked, ...neighbors] = deleted.flat().reverse() as [HttpResponse, ...HttpResponse[]]
  const left = await stored()

  await createAll()
  await operator.query('begin; lock table plants in access exclusive mode')
  const blocked = (await deleteAll()).flat()
  await operator.query('rollback')

  const unexpected = responses.filter(({ status }) => ![200, 204, 400, 404].includes(status))
  const harmed = neighbors.filter(({ status }) => status !== 204)
  const dishonest = blocked.filter((response) => errorNumber(response) !== databaseSlow)
  const rejected = blocked.filter(({ status }) => status === 503)
  const slowest = (all: HttpResponse[]) => round(Math.max(...all.map(({ ms }) => ms)))
  const when = (isSo: boolean, breach: string) => isSo ? [breach] : []
  const first = ([one]: HttpResponse[]) => `${one?.status} ${one?.body}`
  return {
    title: 'Batches that meet locks',
    head: ['', 'writes', 'failed', 'slowest response, ms'],
    rows: [
      ['two instances that write the same plants', responses.length, unexpected.length, slowest(responses)],
      ['the delete of a locked plant', 1, Number(locked.status === 503), slowest([locked])],
      ['other deletes in the same batch', neighbors.length, harmed.length, slowest(neighbors)],
      ['writes to a table that an operator has locked', blocked.length, rejected.length, slowest(blocked)]
    ],
    notes: [`Deadlocks: ${deadlocked}. STATEMENT_TIMEOUT=${statementTimeoutMs}ms; ` +
      'a batch that reaches the limit is retried plant by plant.'],
    breaches: [
      ...when(together < 2, 'no batch had several plants, so the scenario tested nothing'),
      ...when(deadlocked > 0, `${deadlocked} deadlocks`),
      ...when(unexpected.length > 0, `${unexpected.length} writes failed, such as ${first(unexpected)}`),
      ...when(locked.status !== 503, `the locked plant: ${first([locked])}`),
      ...when(harmed.length > 0,
        `${harmed.length} neighbors of the locked plant failed, such as ${first(harmed)}`),
      ...when(left.join() !== `${lockedUser} ${lockedId}`,
        `expected the locked plant alone, found: ${left.join()}`),
      ...when(dishonest.length > 0, `with the table locked: ${first(dishonest)}`)
    ],
    misses: []
  }
}

const plantIds = Array.from({ length: plantsPerUser }, (_, id) => id)
