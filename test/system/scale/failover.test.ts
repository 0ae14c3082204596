// Each test loses the primary in another way while instances write, then promotes the standby.
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { run } from '../container/support.ts'
import { createRandom } from '../faults/random.ts'
import { counted } from '../faults/storm.ts'
import { startWriters } from '../faults/writers.ts'
import { round, table } from '../../support/table.ts'
import { killAhead, missing, startProject, type Project } from './support.ts'

/** The time between the loss of the primary and the promotion of the standby. */
const decisionMs = 1000
const rows: Array<Array<string | number>> = []

interface Loss {
  how: string
  /** Whether commits do not wait for the standby. */
  isAsynchronous?: boolean
  instances?: number
  begin: (project: Project) => Promise<unknown>
}

const losses: Loss[] = [
  { how: 'killed', begin: async ({ container }) => run('kill', await container('one')) },
  { how: 'frozen', begin: async ({ container }) => run('pause', await container('one')) },
  {
    how: 'alive and read-only',
    begin: ({ inside }) => inside('one', 'psql', '--username=postgres', '--quiet',
      '--command=alter system set default_transaction_read_only = on', '--command=select pg_reload_conf()')
  },
  // Use one instance. A second one that writes nothing for a while could still read from the old primary.
  // Only fencing the old primary prevents these reads.
  { how: 'alive and not fenced, with one instance', instances: 1, begin: async () => {} },
  {
    how: 'killed while its asynchronous standby is 300 ms behind',
    isAsynchronous: true,
    begin: (project) => killAhead(project, 300)
  }
]

for (const { how, isAsynchronous = false, instances = 2, begin } of losses) {
  await t.test(`a primary that is ${how}`, { skip: await missing('postgres:17-trixie') }, async (t) => {
    const project = await startProject(t, 'failover', isAsynchronous ? { SYNC: '' } : {})
    const addresses = project.addresses.slice(0, instances)
    const url = await project.databaseUrl('one')
    const { acknowledged, ledger, stop } = await startWriters(url, addresses, createRandom(Date.now()))
    await acknowledged(500)
    await begin(project)
    const lostAt = performance.now()
    await delay(decisionMs)
    await run('exec', '--user=postgres', await project.container('two'), 'pg_ctl', 'promote')
    const promotedAt = performance.now()
    await acknowledged(1)
    const writesAt = performance.now()
    await acknowledged(500)
    const breaches = await stop(await project.databaseUrl('two'))

    const { created, deleted, unknown } = ledger.counts
    const [promotion, writes] = [round(promotedAt - lostAt), round(writesAt - promotedAt)]
    rows.push([how, created + deleted, unknown, promotion, writes, breaches.length])
    t.comment(counted(ledger.counts))
    if (isAsynchronous) t.not(breaches.length, 0, 'the commits that the standby lacked are reported as lost')
    else t.strictSame(breaches, [], 'an order of the requests explains every response')
  })
}

t.comment(table([
  'the primary is', 'acknowledged', 'unknown', 'promoted after, ms', 'writes again after, ms',
  'plants lost or unexplained'
], rows))
