// Counts the acknowledged creates that a crash loses. docs/reliability.md has the figures. Only the first
// crash must lose none. The others show what safe settings and a synchronous standby prevent.
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { run, until } from '../container/support.ts'
import { createClient } from '../faults/client.ts'
import { createUsers } from '../faults/postgres.ts'
import { sql } from '../../support/database.ts'
import { table } from '../../support/table.ts'
import { killAhead, missing, startProject, type Project } from './support.ts'

const clients = 24
const writeMs = 3000
const laggingMs = 300
const rows: Array<Array<string | number>> = []

interface Crash {
  how: string
  /** The server that has the plants after the crash. */
  survivor: 'one' | 'two'
  isAsynchronous?: boolean
  begin: (project: Project) => Promise<unknown>
}

const kill = async ({ container }: Project) => run('kill', await container('one'))

const crashes: Crash[] = [
  { how: 'the server is killed and starts again', survivor: 'one', begin: kill },
  { how: 'the same, with `synchronous_commit` off', survivor: 'one', isAsynchronous: true, begin: kill },
  { how: 'failover to an asynchronous standby', survivor: 'two', begin: kill },
  {
    how: `failover to an asynchronous standby, ${laggingMs} ms behind`,
    survivor: 'two',
    begin: (project) => killAhead(project, laggingMs)
  }
]

/** Creates plants until a request fails. Returns the ids of the acknowledged plants. */
async function createUntilFailure (address: string, token: string, worker: number): Promise<number[]> {
  const client = createClient(address, token)
  const acknowledged: number[] = []
  for (let id = worker; ; id += clients) {
    const { status } = await client.create({ id, name: 'Monstera' })
    if (status !== 200) break
    acknowledged.push(id)
  }
  client.close()
  return acknowledged
}

for (const { how, survivor, isAsynchronous = false, begin } of crashes) {
  await t.test(how, { skip: await missing('postgres:17-trixie') }, async (t) => {
    const project = await startProject(t, 'failover', { SYNC: '' })
    const url = await project.databaseUrl('one')
    const [token = ''] = await createUsers(url, ['ada'])
    const server = await project.container(survivor)
    if (isAsynchronous) {
      await project.inside('one', 'psql', '--username=postgres',
        '--command=alter system set synchronous_commit = off', '--command=select pg_reload_conf()')
    }
    const [address = ''] = project.addresses
    const creates = Array.from({ length: clients }, (_, worker) => createUntilFailure(address, token, worker))
    await delay(writeMs)
    await begin(project)
    const acknowledged = (await Promise.all(creates)).flat()
    if (survivor === 'one') await run('start', server)
    else await run('exec', '--user=postgres', server, 'pg_ctl', 'promote')

    const read = async () => sql(await project.databaseUrl(survivor),
      'select id::int from plants where not pg_is_in_recovery()').catch(() => [])
    const stored = new Set((await until(read, (found) => found.length > 0)).map(({ id }) => id))
    const lost = acknowledged.filter((id) => !stored.has(id)).length
    rows.push([how, acknowledged.length, lost])
    t.ok(acknowledged.length > 100, 'the test wrote plants')
    if (survivor === 'one' && !isAsynchronous) t.equal(lost, 0)
  })
}

t.comment(table(['crash', 'acknowledged creates', 'lost'], rows))
