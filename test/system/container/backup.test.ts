import { readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { openOperator, runbook } from './operator.ts'
import { until } from './support.ts'

const { project, folder, follow, plants, keep, ready } = await openOperator(t, 'backup')
const backups = join(folder, 'backups')
Object.assign(project.env, { BACKUPS: backups, BACKUP_KEEP: '2' })
const dumps = async (prefix: string) =>
  (await readdir(backups)).filter((name) => name.startsWith(prefix) && name.endsWith('.dump')).sort()
const newest = async (prefix: string) =>
  ({ BACKUP: join(backups, (await dumps(prefix)).at(-1) as string) })

await project.compose('up', '--detach')
await ready()

await t.test('a backup is restored into a running service, tokens included', async (t) => {
  await keep(1, 'Fern')
  const token = await project.token('alice')
  await follow(runbook['Back up']?.[0])
  await keep(2, 'Moss')
  const headers = { authorization: `Bearer ${token}` }
  const list = async () => (await fetch(`${await project.url()}/plants`, { headers })).json()
  t.strictSame(await list(), [{ name: 'Fern' }, { name: 'Moss' }])
  await follow(runbook['Restore into a running service']?.[0], await newest('plants'))
  t.strictSame(await list(), [{ name: 'Fern' }])
})

await t.test('the schedule keeps its newest backups, and they can be restored', async (t) => {
  const [first] = await until(() => dumps('scheduled'), ({ length }) => length === 1)
  await follow(runbook['Back up on a schedule']?.[0])
  t.equal((await dumps('scheduled')).length, 2)
  await project.compose('run', '-T', '--rm', 'backup', 'once')
  const kept = await dumps('scheduled')
  t.equal(kept.length, 2)
  t.ok(kept.every((name) => name > (first as string)))
  t.equal((await dumps('plants')).length, 1, 'no other backup is deleted')
  await keep(3, 'Elm')
  await follow(runbook['Restore into a running service']?.[0], await newest('scheduled'))
  t.equal(await plants(), 'Fern')
})

await t.test('a failed backup leaves the other backups unchanged', async (t) => {
  const before = await readdir(backups)
  await project.sql('alter role plant_store nologin')
  const failed = project.compose('run', '-T', '--rm', '--no-deps', 'backup', 'once')
  await t.rejects(failed, /3 older ones are unchanged/)
  await project.sql('alter role plant_store login')
  t.strictSame(await readdir(backups), before)
  await project.compose('stop', 'database')
  await t.rejects(follow(runbook['Back up']?.[0]))
  t.strictSame((await readdir(backups)).filter((name) => !name.endsWith('.part')), before)
  await project.compose('start', 'database')
  await ready()
})

await t.test('a backup is restored into a fresh volume, but a truncated one deletes no volume', async (t) => {
  const truncated = { BACKUP: join(folder, 'truncated.dump') }
  const whole = await readFile((await newest('plants')).BACKUP)
  await writeFile(truncated.BACKUP, whole.subarray(0, -20))
  await t.rejects(follow(runbook['Restore into a fresh volume']?.[0], truncated))
  t.equal(await plants(), 'Fern')
  await keep(4, 'Oak')
  await follow(runbook['Restore into a fresh volume']?.[0], await newest('plants'))
  await ready()
  t.equal(await plants(), 'Fern')
})
