// Loses servers of deploy/compose/failover.yml and members of etcd while two instances write.
import t from 'tap'
import { runbook } from '../container/operator.ts'
import { run, until } from '../container/support.ts'
import { counted } from '../faults/storm.ts'
import { startWriters } from '../faults/writers.ts'
import { sql } from '../../support/database.ts'
import { round, table } from '../../support/table.ts'
import { startProject } from './support.ts'

const project = await startProject(t, ['backup', 'failover'])
const { container, compose, databaseUrl, network } = project
const servers = ['database', 'database-2']
type Member = { Member: string, Role: string, State: string, TL: number }

/** Returns the members of the cluster, as a server that runs sees them. */
async function members (): Promise<Member[]> {
  for (const server of servers) {
    // A server that is cut off would wait for etcd.
    const words = [await container(server), 'timeout', '20', 'patronictl', 'list', '--format=json']
    const listed = await run('exec', ...words).catch(() => '')
    if (listed !== '') return JSON.parse(listed)
  }
  return []
}
const nameOf = (all: Member[], role: string) => all.find(({ Role }) => Role === role)?.Member
/** Resolves to the primary when commits wait for the other server. */
async function whole (): Promise<{ primary: string, standby: string }> {
  const all = await until(members, (all) => nameOf(all, 'Leader') !== undefined &&
    all.some(({ Role, State }) => Role === 'Sync Standby' && State === 'streaming'))
  return { primary: nameOf(all, 'Leader') as string, standby: nameOf(all, 'Sync Standby') as string }
}
/** Runs a block of the runbook. The names of the servers replace those of the runbook. */
async function follow (section: string, block: number, { primary, standby }: Record<string, string>) {
  const names: Record<string, string | undefined> = { database: primary, 'database-2': standby }
  const lines = (runbook[section]?.[block] as string)
    .replaceAll(/\bdatabase(-2)?\b/g, (name) => names[name] as string)
  return project.sh(lines)
}

const start = (...services: string[]) => compose('up', '--detach', '--no-build', '--no-deps', ...services)
const backupOf = (server: string) => server.replace('database', 'backup')

await whole()
const { acknowledged, ledger, stop } = await startWriters(await databaseUrl('database-2'), project.addresses)
  .catch(async () => startWriters(await databaseUrl('database'), project.addresses))

const losses = [
  {
    how: 'killed',
    begin: async (primary: string) => run('kill', await container(primary)),
    end: (primary: string) => start(primary)
  },
  {
    how: 'frozen',
    begin: async (primary: string) => run('pause', await container(primary)),
    end: async (primary: string) => run('unpause', await container(primary))
  },
  {
    how: 'cut off',
    begin: async (primary: string) => run('network', 'disconnect', network, await container(primary)),
    end: async (primary: string) =>
      run('network', 'connect', `--alias=${primary}`, network, await container(primary))
  },
  {
    how: 'lost with its data',
    begin: async (primary: string) => {
      await compose('rm', '--stop', '--force', primary, backupOf(primary))
      await run('volume', 'rm', `${project.env.COMPOSE_PROJECT_NAME}_${primary}`)
    },
    end: (primary: string) => start(primary, backupOf(primary))
  }
]

const failovers: Array<Array<string | number>> = []
for (const { how, begin, end } of losses) {
  await t.test(`a primary that is ${how} is replaced, and returns as the standby`, async (t) => {
    const { primary, standby } = await whole()
    await acknowledged(300)
    await begin(primary)
    const lostAt = performance.now()
    await until(members, (all) => nameOf(all, 'Leader') === standby)
    await acknowledged(1)
    failovers.push([how, round((performance.now() - lostAt) / 1000)])
    await acknowledged(300)
    // A thawed primary answers reads until Patroni stops it.
    ledger.countReads(how !== 'frozen')
    await end(primary)
    t.strictSame(await whole(), { primary: standby, standby: primary })
    ledger.countReads(true)
  })
}
t.comment(table(['the primary is', 'writes again after, s'], failovers))

await t.test('a switchover and a new copy of the standby need one command each', async (t) => {
  const before = await whole()
  await follow('Fail over', 1, before)
  const after = await until(whole, ({ primary }) => primary === before.standby)
  await follow('Fail over', 2, after)
  t.strictSame(await whole(), after)
  t.match(await follow('Fail over', 0, after), /Sync Standby/)
  await acknowledged(300)
})

await t.test('the loss of a standby stops writes only for seconds', async () => {
  const { standby } = await whole()
  await run('kill', await container(standby))
  await acknowledged(300)
  await start(standby)
  await whole()
})

await t.test('without a majority of etcd, the primary goes on, but no standby takes over', async (t) => {
  const { primary, standby } = await whole()
  const etcd = await Promise.all(['etcd-1', 'etcd-2'].map(container))
  await run('kill', etcd[0] as string)
  await acknowledged(300)
  await run('kill', etcd[1] as string)
  const lostAt = Date.now()
  // Longer than the `ttl`.
  while (Date.now() - lostAt < 30_000) await acknowledged(10)
  t.equal(await sqlState(primary), false, 'the primary is still the primary')
  await run('kill', await container(primary))
  t.equal(await sqlState(standby), true)
  for (const id of etcd) await run('start', id)
  await until(() => sqlState(standby), (isStandby) => !isStandby)
  await acknowledged(300)
  await start(primary)
  t.strictSame(await whole(), { primary: standby, standby: primary })
})

await t.test('the backups follow the primary', async () => {
  const { primary, standby } = await whole()
  const info = async () => JSON.parse(await run('exec', await container(primary), 'pgbackrest', 'info',
    '--output=json'))[0].backup.at(-1).archive.start.slice(0, 8)
  const expected = await run('exec', await container(primary), 'psql', '--username=postgres',
    '--tuples-only', '--no-align', '--command=select left(pg_walfile_name(pg_current_wal_lsn()), 8)')
  await until(info, (newest) => newest === expected)
  const files = async () => run('exec', await container(backupOf(standby)), 'ls', '/metrics')
  await until(files, (names) => names === `${backupOf(primary)}.prom`)
})

await t.test('every acknowledged write is there', async (t) => {
  const { primary } = await whole()
  const breaches = await stop(await databaseUrl(primary))
  t.comment(counted(ledger.counts))
  t.strictSame(breaches, [], 'an order of the requests explains every response')
})

/** Returns whether the server is a standby. */
async function sqlState (server: string): Promise<boolean> {
  const [row] = await sql(await databaseUrl(server), 'select pg_is_in_recovery() as standby')
  return row?.standby as boolean
}
