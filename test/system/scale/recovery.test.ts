// Recovers the servers of deploy/compose/failover.yml to a moment, with the commands of docs/runbook.md.
import t from 'tap'
import { runbook } from '../container/operator.ts'
import { run, until, waitForStatus } from '../container/support.ts'
import { startProject } from './support.ts'

const project = await startProject(t, ['backup', 'failover'])
const { container, env } = project
const primary = async () => {
  const list = async () => run('exec', await container('database-2'), 'patronictl', 'list')
  const listed = await until(list, (text) => /Sync Standby .* streaming/.test(text))
  return /^\| (\S+) .* Leader /m.exec(listed)?.[1] as string
}
const sql = async (text: string) => run('exec', await container(await primary()), 'psql',
  '--username=postgres', '--dbname=plant_store', '--tuples-only', '--no-align', `--command=${text}`)
const keep = (id: number, name: string) =>
  sql(`insert into plants (owner, id, name) values ('alice', ${id}, '${name}')`)

await t.test('a cluster is recovered to a moment after a failover', async (t) => {
  const info = async () => run('exec', await container('backup'), 'pgbackrest', 'info')
  await until(info, (text) => text.includes('full backup'))
  await keep(1, 'Fern')
  const first = await primary()
  const words = ['patronictl', 'switchover', 'plants', '--primary', first, '--force']
  await run('exec', await container(first), ...words)
  t.not(await until(primary, (name) => name !== first), first)
  await keep(2, 'Ivy')
  const UNTIL = await sql('select clock_timestamp()')
  await keep(3, 'Mistake')

  env.STANZA = 'plants-2'
  const [recover, , start] = runbook.Recover as [string, string, string]
  await project.sh(recover, { FROM: 'plants', UNTIL })
  await project.sh(start)
  await project.compose('up', '--detach', '--no-build')
  t.equal(await sql('select string_agg(name, \',\' order by id) from plants'), 'Fern,Ivy')
  await waitForStatus(`${await project.url()}/readyz`, 200)
  await until(info, (text) => text.includes('stanza: plants-2') && text.includes('full backup'))
})
