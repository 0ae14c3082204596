// Loses and rebuilds the servers of deploy/compose/failover.yml with the commands of docs/runbook.md.
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { runbook } from '../container/operator.ts'
import { root, run, until, urlOf, waitForStatus } from '../container/support.ts'
import { counted } from '../faults/storm.ts'
import { startWriters } from '../faults/writers.ts'
import { sql } from '../../support/database.ts'
import { missing, startProject, type Project } from './support.ts'

const skip = await missing('postgres:17-trixie')
const exchanged = { one: 'two', two: 'one' }

/** Runs the commands of a section of the runbook. `names` replace the names of the servers. */
async function follow (project: Project, section: string, names: Record<string, string> = {}, cwd?: string) {
  const lines = (runbook[section]?.[0] as string)
    .replaceAll(/\b(?:one|two)\b|(?<=exec -T )database\b/g, (name) => names[name] ?? name)
  return project.sh(lines, {}, cwd)
}

const query = ({ inside }: Project, server: string, text: string) =>
  inside(server, 'psql', '--username=postgres', '--no-align', '--tuples-only', `--command=${text}`)
const command = ({ inside }: Project, server: string, ...words: string[]) =>
  inside(server, 'bash', '/failover/server.sh', ...words)
/** Resolves when the last line of the server's log is the reason why PostgreSQL does not start. */
const refuses = (project: Project, server: string, reason: string) =>
  until(() => project.compose('logs', '--no-color', '--tail=1', server), (log) => log.includes(`| ${reason}`))
/** Resolves when commits on the primary wait for the other server. */
const isSynchronous = (project: Project, primary: string) =>
  until(() => query(project, primary, 'select sync_state from pg_stat_replication'), (it) => it === 'sync')

/** Creates a token. Returns functions that send requests to an instance. */
async function openUser (project: Project) {
  const authorization = `Bearer ${await project.token('alice')}`
  const send = async (init: RequestInit = {}) => {
    const headers = { authorization, 'content-type': 'application/json' }
    return fetch(`${await project.url()}/plants`, { ...init, headers })
  }
  return {
    create: async (id: number) =>
      (await send({ method: 'POST', body: `{"id":${id},"name":"${id}"}` })).status,
    list: async () => (await send()).json()
  }
}

await t.test('failovers there and back, with a rebuild after each, lose no write', { skip }, async (t) => {
  const project = await startProject(t, 'failover')
  const { acknowledged, ledger, stop } =
    await startWriters(await project.databaseUrl('one'), project.addresses)
  await acknowledged(300)
  for (const names of [{}, exchanged] as Array<Record<string, string>>) {
    const [primary = 'one', standby = 'two'] = [names.one, names.two]
    await follow(project, 'Fail over', names)
    await acknowledged(300)
    await project.compose('up', '--detach', '--no-build', '--scale', 'plant-store=2')
    await refuses(project, primary, `${primary} is fenced, because ${standby} is the primary`)
    await acknowledged(300)
    await follow(project, 'Rebuild a server', names)
    await project.healthy(primary)
    await isSynchronous(project, standby)
    await acknowledged(300)
  }
  const breaches = await stop()
  t.comment(counted(ledger.counts))
  t.strictSame(breaches, [], 'an order of the requests explains every response')
})

await t.test('a standby never creates a database of its own', { skip }, async (t) => {
  const project = await startProject(t, 'failover')
  const { create } = await openUser(project)
  const loseData = async (server: string) => {
    await project.compose('rm', '--stop', '--force', server)
    await run('volume', 'rm', `${project.env.COMPOSE_PROJECT_NAME}_${server}`)
  }
  const start = (server: string) => project.compose('up', '--detach', '--no-build', '--no-deps', server)

  t.equal(await create(1), 200)
  await loseData('two')
  project.env.DATABASE_PASSWORD = 'wrong'
  await start('two')
  await refuses(project, 'two', 'No copy of the primary one: psql: error: connection to server')
  await t.rejects(project.inside('two', 'ls', '/data/server'), /No such file/)
  t.equal(await create(2), 503, 'commits wait for the standby')

  await follow(project, 'Go on without the standby', exchanged)
  t.equal(await create(3), 200)
  delete project.env.DATABASE_PASSWORD
  await start('two')
  await project.healthy('two')
  await isSynchronous(project, 'one')
  t.equal(await query(project, 'two', 'select pg_is_in_recovery()'), 't')

  await loseData('one')
  await start('one')
  await refuses(project, 'one', 'The data of the primary one are lost: promote two')
  await command(project, 'two', 'promote')
  await start('one')
  await project.healthy('one')
  await isSynchronous(project, 'two')
  t.equal(await create(4), 200)
  t.match(await sql(await project.databaseUrl('two'), 'select array_agg(id::int order by id) from plants'),
    [{ array_agg: [1, 2, 3, 4] }])
})

await t.test('an old primary is fenced, and only a person can go back to it', { skip }, async (t) => {
  const project = await startProject(t, 'failover')
  const { create, list } = await openUser(project)
  const promote = (server: string, ...words: string[]) => command(project, server, 'promote', ...words)
  const rebuild = (server: string) =>
    project.compose('run', '-T', '--rm', '--no-deps', server, 'rebuild')

  t.equal(await create(1), 200)
  await t.rejects(promote('two'), /one still runs/)
  await t.rejects(promote('one'), /two still runs/)
  await t.rejects(rebuild('one'), /one still runs/)
  await project.compose('stop', 'one')
  await t.rejects(rebuild('one'), /one is the primary/)
  await project.compose('start', 'one')
  await project.healthy('one')
  await isSynchronous(project, 'one')

  const one = await project.container('one')
  await run('pause', one)
  await promote('two')
  await until(() => create(2), (status) => status === 200)
  await run('unpause', one)
  await refuses(project, 'one', 'one is fenced')
  t.strictSame(await list(), [{ name: '1' }, { name: '2' }])

  await project.compose('kill', 'two')
  await t.rejects(promote('one'), /one lacks the writes since two took over/)
  await follow(project, 'If the new primary is lost, too')
  for (const instance of await project.containers('plant-store')) {
    await waitForStatus(`${await urlOf(instance)}/readyz`, 200)
  }
  t.strictSame(await list(), [{ name: '1' }], 'the write on the lost primary is lost')

  await project.compose('up', '--detach', '--no-build', '--no-deps', 'two')
  await refuses(project, 'two', 'two is fenced, because one is the primary')
  await follow(project, 'Rebuild a server', exchanged)
  await project.healthy('two')
  await isSynchronous(project, 'one')
})

await t.test('a standby that commits did not wait for is not promoted unnoticed', { skip }, async (t) => {
  const project = await startProject(t, 'failover')
  const { create, list } = await openUser(project)
  const two = await project.container('two')
  const goOn = () => follow(project, 'Go on without the standby', exchanged)
  await t.rejects(command(project, 'two', 'alone'), /two is not the primary/)

  await run('pause', two)
  await goOn()
  t.equal(await create(1), 200)
  await run('unpause', two)
  await isSynchronous(project, 'one')
  const names = () => project.inside('one', 'cat', '/cluster/standby').catch(() => '')
  await until(names, (name) => name === 'two')

  await project.compose('stop', 'two')
  await goOn()
  t.equal(await create(2), 200)
  await project.compose('kill', 'one')
  await project.compose('start', 'two')
  await until(() => query(project, 'two', 'select 1').catch(() => ''), (result) => result === '1')
  await t.rejects(command(project, 'two', 'promote'), /two may lack acknowledged writes/)
  await follow(project, 'If the new primary is lost, too', exchanged)
  for (const instance of await project.containers('plant-store')) {
    await waitForStatus(`${await urlOf(instance)}/readyz`, 200)
  }
  t.strictSame(await list(), [{ name: '1' }])
})

await t.test('backups of the primary are made and restored after a failover', { skip }, async (t) => {
  const project = await startProject(t, 'failover')
  const folder = t.testdir({ 'backup.yml': 'services: { backup: { image: "postgres:17-trixie" } }' })
  const { create, list } = await openUser(project)
  t.equal(await create(1), 200)
  await follow(project, 'Fail over')
  await until(() => create(2), (status) => status === 200)
  project.env.COMPOSE_FILE += `:${join(root, 'deploy/compose/backup.yml')}:${join(folder, 'backup.yml')}`
  const text = await readFile(join(root, 'docs/runbook.md'), 'utf8')
  const [, DATABASE_URL] = /`DATABASE_URL=(.*one,two.*)`/.exec(text) ?? []
  Object.assign(project.env, { DATABASE_URL, BACKUPS: join(folder, 'scheduled') })
  const onTwo = (section: string) => follow(project, section, { database: 'two' }, folder)
  await onTwo('Back up')
  await project.compose('run', '-T', '--rm', '--no-deps', 'backup', 'once')
  for (const name of ['backups', 'scheduled']) {
    t.equal(await create(3), 200)
    const files = await readdir(join(folder, name))
    project.env.BACKUP = join(folder, name, files.find((file) => file.endsWith('.dump')) as string)
    await onTwo('Restore into a running service')
    t.strictSame(await list(), [{ name: '1' }, { name: '2' }], name)
  }
})
