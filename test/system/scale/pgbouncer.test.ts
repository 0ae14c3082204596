// Tests the service with PgBouncer between the service and PostgreSQL. Through PgBouncer, several connections
// of the service share one PostgreSQL connection.
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { tableNames } from '../../../src/domains.ts'
import { migrate } from '../../../src/database/migrate.ts'
import { run, waitForStatus } from '../container/support.ts'
import { counted } from '../faults/storm.ts'
import { startWriters } from '../faults/writers.ts'
import { startApp } from '../../support/app.ts'
import { openSession, sql } from '../../support/database.ts'
import { migrations } from '../../support/migrations.ts'
import { reportPlans, watchPlans } from '../../support/plans.ts'
import { unmeasured } from '../../support/program.ts'
import { missing, startProject } from './support.ts'

const skip = await missing('postgres:18', 'edoburu/pgbouncer:v1.24.1-p1')

t.test('the service works through PgBouncer in transaction mode without further settings', {
  skip
}, async (t) => {
  const project = await startProject(t, ['pgbouncer'], { DATABASE_PASSWORD: 'p/a?s\'s"w#o\\r$d' })
  const url = await project.databaseUrl('pool')
  const direct = await project.databaseUrl('database')
  const { acknowledged, ledger, stop } = await startWriters(url, project.addresses)
  await acknowledged(500)
  const count = "select count(*) from pg_stat_activity where usename = 'plant_store'"
  t.ok(Number(await project.sql(count)) <= 5, 'at most 5 connections, while two instances have up to 14')
  t.strictSame(await sql(url, 'show statement_timeout'), [{ statement_timeout: '5s' }], 'from the role')

  for (const service of ['pool', 'database']) {
    const container = await project.container(service)
    await run('kill', container)
    await run('start', container)
    await acknowledged(500)
  }
  for (const address of project.addresses) await waitForStatus(`${address}/readyz`, 200)
  const breaches = await stop(direct)
  t.comment(counted(ledger.counts))
  t.strictSame(breaches, [], 'after two kills an order of the requests explains every response')

  const file = join(t.testdir({ 'plants.csv': 'id,name\n1,Fern\n2,Ivy\n' }), 'plants.csv')
  const importPlants = () => unmeasured.run(['import', 'importer', file], { DATABASE_URL: url })
  t.match(await importPlants(), { code: 0, stderr: '2 created, 0 existing, 0 rejected\n' })
  t.match(await importPlants(), { code: 0, stderr: '0 created, 2 existing, 0 rejected\n' })
  // A statement of the role may wait for 5 s.
  const blocker = await openSession(t, direct, 'begin; lock table plants')
  const commands = [['import', 'importer', file], ['export', 'importer'], ['user', 'list']]
    .map((words) => unmeasured.run(words, { DATABASE_URL: url }))
  await delay(6000)
  await blocker.query('commit')
  for (const command of commands) t.match(await command, { code: 0 })

  await project.sql('create database other owner plant_store', 'postgres')
  t.strictSame(await migrate(url.replace(/plant_store$/, 'other')), migrations)

  await project.compose('stop', 'pool')
  t.equal(await project.exitCode('pool'), '0', 'PgBouncer does not wait for idle connections until its kill')
})

t.test('through PgBouncer, statements use the index on every server connection', { skip }, async (t) => {
  const project = await startProject(t, ['pgbouncer'])
  const restartPool = async () => {
    await run('restart', await project.container('pool'))
    return project.databaseUrl('pool')
  }
  for (const table of tableNames) await project.sql(`alter table ${table} set (autovacuum_enabled = off)`)
  await project.sql('vacuum analyze')
  await reportPlans(project.sql, 'plant_store')
  const url = await restartPool()

  const watch = watchPlans(t)
  const { as } = await startApp(t, { DATABASE_URL: url })
  const users = await Promise.all(Array.from({ length: 20 }, (_, index) => as(`user ${index}`)))
  const act = () => Promise.all(users.map(async (user) => {
    const responses = [await user.create({ id: 1, name: 'Fern' }), await user.list(), await user.delete(1)]
    return responses.map(({ statusCode }) => statusCode)
  }))
  // PostgreSQL plans the statements for an empty table, and keeps the plans.
  for (let round = 0; round < 20; round++) await act()
  await project.sql(`insert into plants (owner, id, name)
    select 'other ' || n, n, 'Fern' from generate_series(1, 20000) as n`)
  let statusCodes: number[][] = []
  const statements = await watch(async () => { statusCodes = await act() })
  t.strictSame(statusCodes, users.map(() => [200, 200, 204]))
  const most = Math.max(...statements.map(({ rowsRead }) => rowsRead))
  t.ok(most <= 2 * users.length, `no statement reads more than ${most} rows`)

  // Five transactions at the same time use the five server connections of the pool.
  const sessions = await Promise.all(Array.from({ length: 5 }, () => openSession(t, url, 'begin')))
  const settings = {
    enable_seqscan: 'off',
    enable_bitmapscan: 'off',
    statement_timeout: '5s',
    client_connection_check_interval: '500ms'
  }
  const columns = Object.keys(settings).map((name) => `current_setting('${name}') as ${name}`)
  for (const session of sessions) {
    t.strictSame((await session.query(`select ${columns}`)).rows, [settings])
    await session.end()
  }

  await project.sql('alter role plant_store reset enable_seqscan')
  const { logged } = await unmeasured.serve(t, { DATABASE_URL: await restartPool(), MIGRATE: 'off' })
  t.match(await logged('the role lacks settings'), { missing: ['enable_seqscan'] })
})
