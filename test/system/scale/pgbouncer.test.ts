// Tests the service with PgBouncer between the service and PostgreSQL. Through PgBouncer, several connections
// of the service share one PostgreSQL connection.
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { migrate } from '../../../src/database/migrate.ts'
import { run, waitForStatus } from '../container/support.ts'
import { counted } from '../faults/storm.ts'
import { startWriters } from '../faults/writers.ts'
import { openSession, sql } from '../../support/database.ts'
import { migrations } from '../../support/migrations.ts'
import { unmeasured } from '../../support/program.ts'
import { missing, startProject } from './support.ts'

t.test('the service works through PgBouncer in transaction mode without further settings', {
  skip: await missing('postgres:18', 'edoburu/pgbouncer:v1.24.1-p1')
}, async (t) => {
  const project = await startProject(t, 'pgbouncer', { DATABASE_PASSWORD: 'p/a?s\'s"w#o\\r$d' })
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
})
