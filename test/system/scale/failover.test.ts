// Loses a server of the database while instances write, then promotes the standby or restarts the server.
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { run, until } from '../container/support.ts'
import { createClient } from '../faults/client.ts'
import { createUsers } from '../faults/postgres.ts'
import { counted } from '../faults/storm.ts'
import { startWriters } from '../faults/writers.ts'
import { sql } from '../../support/database.ts'
import { round, table } from '../../support/table.ts'
import { missing, startProject, type Project } from './support.ts'

const skip = await missing('postgres:17-trixie')

const kill = async ({ container }: Project) => run('kill', await container('one'))

/** Kills the primary `one` when its standby `two` lacks the writes of the last 300 milliseconds. */
async function killAhead ({ container, network }: Project) {
  const [one, two] = [await container('one'), await container('two')]
  await run('network', 'disconnect', network, two)
  await delay(300)
  await run('kill', one)
  await run('network', 'connect', '--alias=two', network, two)
}

const alter = ({ inside }: Project, setting: string) => inside('one', 'psql', '--username=postgres',
  '--quiet', `--command=alter system set ${setting}`, '--command=select pg_reload_conf()')
const makeReadOnly = (project: Project) => alter(project, 'default_transaction_read_only = on')

/** Without this program, the health check fails before it stops an old primary. */
const unfence = ({ inside }: Project) => inside('one', 'sh', '-c', 'rm "$(command -v pg_isready)"')

const promote = async ({ container }: Project) =>
  run('exec', '--user=postgres', await container('two'), 'pg_ctl', 'promote')

const losses = [
  { how: 'killed', begin: kill },
  { how: 'frozen', begin: async ({ container }: Project) => run('pause', await container('one')) },
  { how: 'alive and read-only', begin: makeReadOnly },
  // Use one instance. A second one that writes nothing for a while could still read from the old primary.
  // Only fencing the old primary prevents these reads.
  { how: 'alive and not fenced, with one instance', instances: 1, begin: unfence },
  { how: 'killed while its asynchronous standby is 300 ms behind', isAsynchronous: true, begin: killAhead }
]

const failovers: Array<Array<string | number>> = []
for (const { how, isAsynchronous = false, instances = 2, begin } of losses) {
  await t.test(`a primary that is ${how}`, { skip }, async (t) => {
    const project = await startProject(t, 'failover', isAsynchronous ? { SYNC: '' } : {})
    const addresses = project.addresses.slice(0, instances)
    const { acknowledged, ledger, stop } = await startWriters(await project.databaseUrl('one'), addresses)
    await acknowledged(500)
    await begin(project)
    const lostAt = performance.now()
    // The promotion follows the loss of the primary after a second.
    await delay(1000)
    await promote(project)
    const promotedAt = performance.now()
    await acknowledged(1)
    const writesAt = performance.now()
    await acknowledged(500)
    const breaches = await stop(await project.databaseUrl('two'))

    const { created, deleted, unknown } = ledger.counts
    const times = [round(promotedAt - lostAt), round(writesAt - promotedAt)]
    failovers.push([how, created + deleted, unknown, ...times, breaches.length])
    t.comment(counted(ledger.counts))
    if (isAsynchronous) t.not(breaches.length, 0, 'the commits that the standby lacked are reported as lost')
    else t.strictSame(breaches, [], 'an order of the requests explains every response')
  })
}
t.comment(table([
  'the primary is', 'acknowledged', 'unknown', 'promoted after, ms', 'writes again after, ms',
  'plants lost or unexplained'
], failovers))

const clients = 24
const writeMs = 3000

/** Creates plants until a request fails. Returns the ids of the acknowledged plants. */
async function createUntilFailure (address: string, token: string, worker: number): Promise<number[]> {
  const client = createClient(address, token)
  const acknowledged: number[] = []
  for (let id = worker; (await client.create({ id, name: 'Monstera' })).status === 200; id += clients) {
    acknowledged.push(id)
  }
  client.close()
  return acknowledged
}

// docs/reliability.md has the figures. Only the first crash must lose no acknowledged create. The others show
// what safe settings and a synchronous standby prevent.
const crashes = [
  { how: 'the server is killed and starts again', isRestarted: true, begin: kill },
  { how: 'the same, with `synchronous_commit` off', isRestarted: true, commit: 'off', begin: kill },
  { how: 'failover to an asynchronous standby', isRestarted: false, begin: kill },
  { how: 'failover to an asynchronous standby, 300 ms behind', isRestarted: false, begin: killAhead }
]

const lostWrites: Array<Array<string | number>> = []
for (const { how, isRestarted, commit = 'on', begin } of crashes) {
  await t.test(how, { skip }, async (t) => {
    const project = await startProject(t, 'failover', { SYNC: '' })
    const [token = ''] = await createUsers(await project.databaseUrl('one'), ['ada'])
    const primary = await project.container('one')
    await alter(project, `synchronous_commit = ${commit}`)
    const creates = Array.from({ length: clients }, (_, worker) =>
      createUntilFailure(project.addresses[0] as string, token, worker))
    await delay(writeMs)
    await begin(project)
    const acknowledged = (await Promise.all(creates)).flat()
    await (isRestarted ? run('start', primary) : promote(project))

    const read = async () => sql(await project.databaseUrl(isRestarted ? 'one' : 'two'),
      'select id::int from plants where not pg_is_in_recovery()').catch(() => [])
    const stored = new Set((await until(read, (found) => found.length > 0)).map(({ id }) => id))
    const lost = acknowledged.filter((id) => !stored.has(id)).length
    lostWrites.push([how, acknowledged.length, lost])
    t.ok(acknowledged.length > 100, 'the test wrote plants')
    if (isRestarted && commit === 'on') t.equal(lost, 0)
  })
}
t.comment(table(['crash', 'acknowledged creates', 'lost'], lostWrites))

// A coordinator distributes the plants to two workers.
const citus = process.env.CITUS_IMAGE
for (const batch of ['1', '500']) {
  await t.test(`with WRITE_BATCH=${batch} plants distributed by Citus survive the loss of a worker`, {
    skip: citus === undefined ? 'CITUS_IMAGE names no image of Citus' : await missing(citus)
  }, async (t) => {
    const project = await startProject(t, 'citus', { WRITE_BATCH: batch })
    const url = await project.databaseUrl('coordinator')
    const { acknowledged, ledger, stop } = await startWriters(url, project.addresses)
    await acknowledged(500)
    const worker = await project.container('worker-one')
    await run('kill', worker)
    await delay(3000)
    await run('start', worker)
    await acknowledged(500)
    const breaches = await stop()
    t.comment(counted(ledger.counts))
    t.strictSame(breaches, [], 'an order of the requests explains every response')
  })
}
