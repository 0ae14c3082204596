// Backs up, recovers and restores with the commands of docs/runbook.md.
import { readdir, readFile, rename, truncate, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { openOperator } from './operator.ts'
import { run, until } from './support.ts'

const { project, folder, follow, plants, keep, ready } = await openOperator(t, 'backup')
const now = () => project.sql('select clock_timestamp()')
const info = async () => JSON.parse(await project.inside('backup', 'pgbackrest', 'info', '--output=json'))[0]
const backedUp = () => until(() => info().catch(() => undefined), (found) => found?.backup.length > 0)
const metric = async (name: string) => {
  const read = () => project.inside('backup', 'cat', '/metrics/backup.prom').catch(() => '')
  return Number(new RegExp(`^${name} (.*)$`, 'm').exec(await read())?.[1])
}

let last = 1
/** Recovers, by default as much as the newest history has, into a new history. */
async function recover (UNTIL = '', FROM = project.env.STANZA ?? 'plants') {
  const before = project.env.STANZA
  project.env.STANZA = `plants-${++last}`
  await follow('Recover', { FROM, UNTIL }).catch((error) => {
    project.env.STANZA = before
    throw error
  })
  await follow('Recover', {}, 1)
  await project.compose('up', '--detach')
  await ready()
}
const idOf = (user: string) => project.sql(`select id from tokens where username = '${user}'`)
/** Returns the status of a list with the token. */
const status = async (token: string) =>
  (await fetch(`${await project.url()}/plants`, { headers: { authorization: `Bearer ${token}` } })).status
/** Runs shell lines on the stopped data or on the backups. */
const repair = (lines: string) => project.compose('run', '-T', '--rm', '--no-deps', '--user=root',
  '--entrypoint=sh', 'database', '-ec', lines)

await follow('Back up')
await ready()
await backedUp()
const moments: string[] = []

await t.test('after a recovery to a moment, revoked tokens and erased users stay so', async (t) => {
  const tokens: string[] = []
  for (const user of ['alice', 'bob', 'dave']) tokens.push(await project.token(user))
  await project.sql("insert into plants (owner, id, name) values ('dave', 9, 'Weed')")
  await keep(1, 'Fern')
  moments.push(await now())
  await keep(2, 'Ivy')
  await follow('Back up', {}, 1)
  moments.push(await now())
  await keep(3, 'Mistake')
  await project.inside('plant-store', 'plant-store', 'token', 'revoke', await idOf('bob'))
  await project.inside('plant-store', 'plant-store', 'user', 'erase', 'dave', '--yes')
  await writeFile(join(folder, 'erased.txt'), 'dave\n')
  await follow('Save the revocations')

  await recover(moments[0])
  t.equal(await plants(), 'Fern,Weed', 'before the newest backup, when the erased user was there')
  await follow('Revoke and erase again')
  await ready()
  t.equal(await plants(), 'Fern')
  t.strictSame(await Promise.all(tokens.map(status)), [200, 401, 401])
  await keep(4, 'Oak')
})

await t.test('a repeated recovery returns to what there was at a moment, in any history', async (t) => {
  await backedUp()
  await keep(5, 'Elm')
  moments.push(await now())
  await recover()
  t.equal(await plants(), 'Fern,Oak,Elm', 'as much as there is, after the first recovery')
  await recover(moments[1], 'plants')
  t.equal(await plants(), 'Fern,Ivy,Weed', 'a later moment, before the first recovery')
  await recover(moments[2], 'plants-2')
  t.equal(await plants(), 'Fern,Oak,Elm', 'a moment after the first recovery')
})

await t.test('a recovery that cannot succeed changes nothing', async (t) => {
  await backedUp()
  await t.rejects(repair('sh /recover.sh plants'), /The database still runs/)
  await t.rejects(repair('sh /recover.sh "$PGBACKREST_STANZA"'), /Set STANZA in .env to a new name first/)
  const before = await plants()
  const moment = await now()
  for (const [UNTIL, reason] of [['2099-01-01 00:00:00+00', /unable to find backup set/],
    ['2001-01-01 00:00:00+00', /unable to find backup set/], ['tomorrow or so', /tomorrow or so/],
    [moment, /ended before configured recovery target.*changed nothing/s]] as const) {
    // A history that has ended has nothing after this moment.
    const from = UNTIL === moment ? 'plants' : undefined
    await t.rejects(recover(UNTIL, from), reason, UNTIL)
  }
  const name = `${project.env.COMPOSE_PROJECT_NAME}-killed`
  await project.compose('stop')
  const killed = t.rejects(project.compose('run', '-T', '--no-deps', '--name', name,
    '--entrypoint=sh', 'database', '/recover.sh', 'plants'))
  const isRunning = () => run('inspect', '--format={{.State.Running}}', name).catch(() => '')
  await until(isRunning, (it) => it === 'true')
  await run('kill', name)
  await killed
  await project.compose('up', '--detach')
  await ready()
  t.equal(await plants(), before)
})

await t.test('a late archive delays nothing but the archive, and shows in the metrics', async (t) => {
  await repair('mv /backups/pgbackrest /backups/away')
  await keep(6, 'Ash')
  await project.sql('select pg_switch_wal()')
  await project.compose('restart', 'backup')
  await until(() => metric('plant_store_archive_delay_seconds'), (seconds) => seconds > 0)
  await repair('rm -rf /backups/pgbackrest; mv /backups/away /backups/pgbackrest')
  await project.inside('database', 'pgbackrest', 'check', '--pg1-socket-path=/socket').catch(() => {})
  await project.compose('restart', 'backup')
  await until(() => metric('plant_store_archive_delay_seconds'), (seconds) => seconds === 0)
  t.equal(await metric('plant_store_backup_verified'), 1)
  t.ok(await metric('plant_store_backup_timestamp_seconds') > Date.now() / 1000 - 3600)
})

await t.test('a missing or damaged segment is noticed before a recovery', async (t) => {
  for (const [id, name] of [[7, 'Fig'], [8, 'Yew']] as const) {
    await keep(id, name)
    await project.sql('select pg_switch_wal()')
  }
  const folderOf = '$(ls -d /backups/pgbackrest/archive/$PGBACKREST_STANZA/*/0*)'
  const archived = async () => (await repair(`cd ${folderOf}; ls | grep zst`)).split('\n')
  const names = await until(archived, (found) => found.length > 3)
  const segment = names.at(-2) as string
  await repair(`cd ${folderOf}; cp -p ${segment} /backups/saved; rm ${segment}`)
  await t.rejects(recover(), /segments of the log are missing/)
  await repair(`cd ${folderOf}; cp -p /backups/saved ${segment}
    printf XX | dd of=${segment} seek=200 bs=1 conv=notrunc`)
  await t.rejects(recover(), /status: error/)
  await project.compose('restart', 'backup')
  await until(() => metric('plant_store_backup_verified'), (verified) => verified === 0)
  await repair(`cd ${folderOf}; cp -p /backups/saved ${segment}`)
})

await t.test('after the loss of the disk, all but the last minute is recovered', async (t) => {
  const before = await plants()
  await project.sql('select pg_switch_wal()')
  const waiting = "select count(*) from pg_ls_archive_statusdir() where name like '%ready'"
  await until(() => project.sql(waiting), (count) => count === '0')
  await run('kill', await project.container('database'))
  await project.compose('down', '--volumes')
  await recover()
  t.equal(await plants(), before)
})

await t.test('a dump is restored into a running service, completely or not at all', async (t) => {
  await follow('Back up', {}, 2)
  const BACKUP = join(folder, (await readdir(folder)).find((name) => name.endsWith('.dump')) as string)
  const before = await plants()
  const whole = await readFile(BACKUP)
  await truncate(BACKUP, whole.length - 20)
  await keep(10, 'Bay')
  await t.rejects(follow('Restore a dump', { BACKUP }))
  t.equal(await plants(), `${before},Bay`)
  await writeFile(BACKUP, whole)
  await follow('Restore a dump', { BACKUP })
  t.equal(await plants(), before)

  const token = await project.token('alice')
  await follow('Revoke all tokens')
  await until(() => status(token), (code) => code === 401)
  const list = join(folder, 'revoked.txt')
  await rename(list, `${list}.saved`)
  await t.rejects(follow('Revoke and erase again'), /revoked\.txt/)
  await rename(`${list}.saved`, list)
})

await t.test('the old data can be deleted', async (t) => {
  const folders = async () => (await repair('ls "$(dirname "$PGDATA")"')).split('\n').length
  await recover()
  t.ok(await folders() > 1)
  await follow('Recover', {}, 3)
  t.equal(await folders(), 1)
})
