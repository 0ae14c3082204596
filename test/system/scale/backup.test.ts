// Recovers again and again, and damages the backups, with the commands of docs/runbook.md.
import t from 'tap'
import { openBackups } from '../container/operator.ts'
import { run, until } from '../container/support.ts'

const { project, follow, plants, keep, ready, backUp, now, recover } = await openBackups(t)
const metric = async (name: string) => {
  const read = () => project.inside('backup', 'cat', '/metrics/backup.prom').catch(() => '')
  return Number(new RegExp(`^${name}\\S* (.*)$`, 'm').exec(await read())?.[1])
}
/** Runs shell lines on the stopped data or on the backups. */
const repair = (lines: string) => project.compose('run', '-T', '--rm', '--no-deps', '--user=root',
  '--entrypoint=sh', 'database', '-ec', lines)

await t.test('a repeated recovery returns to what there was at a moment, in any history', async (t) => {
  await keep(1, 'Fern')
  const before = await now()
  await keep(2, 'Ivy')
  await backUp()
  const between = await now()
  await keep(3, 'Mistake')
  await recover(before)
  t.equal(await plants(), 'Fern', 'before the newest backup')
  await keep(4, 'Oak')
  await backUp()
  await keep(5, 'Elm')
  const after = await now()
  await recover()
  t.equal(await plants(), 'Fern,Oak,Elm', 'as much as there is, after the first recovery')
  await recover(between, 'plants')
  t.equal(await plants(), 'Fern,Ivy', 'a later moment, before the first recovery')
  await recover(after, 'plants-2')
  t.equal(await plants(), 'Fern,Oak,Elm', 'a moment after the first recovery')
  const folders = async () => (await repair('ls "$(dirname "$PGDATA")"')).split('\n').length
  t.equal(await folders(), 5)
  await follow('Recover', {}, 3)
  t.equal(await folders(), 1, 'without the old data')
})

await t.test('a recovery that cannot succeed changes nothing', async (t) => {
  await backUp()
  await t.rejects(repair('PGBACKREST_STANZA=new sh /recover.sh plants'), /The database still runs/)
  for (const from of ['plants', '"$PGBACKREST_STANZA"']) {
    await t.rejects(repair(`sh /recover.sh ${from}`), /Set STANZA in .env to a new name first/, from)
  }
  const before = await plants()
  const moment = await now()
  for (const [UNTIL, reason] of [['2099-01-01 00:00:00+00', /unable to find backup set/],
    ['2001-01-01 00:00:00+00', /unable to find backup set/], ['tomorrow or so', /tomorrow or so/],
    [moment, /ended before configured recovery target.*changed nothing/s]] as const) {
    // A history that has ended has nothing after this moment.
    const from = UNTIL === moment ? 'plants' : undefined
    await t.rejects(recover(UNTIL, from), reason, UNTIL)
  }
  // The client of a recovery is killed, and its container goes on while the database starts again.
  await project.compose('stop')
  const name = `${project.env.COMPOSE_PROJECT_NAME}-orphan`
  const into = ['run', '-T', '--rm', '--no-deps', '-e', 'PGBACKREST_STANZA=new', '--entrypoint=sh']
  const orphan = project.compose(...into, '--name', name, 'database', '/recover.sh', 'plants')
  orphan.catch(() => {})
  await until(() => run('exec', name, 'sh', '-c', 'ls -d "$PGDATA.new"').catch(() => ''), (it) => it !== '')
  await run('pause', name)
  await t.rejects(project.compose(...into, 'database', '/recover.sh', 'plants'), /Another recovery/)
  await project.compose('up', '--detach')
  await ready()
  await run('unpause', name)
  await t.rejects(orphan, /The database still runs/)
  t.equal(await plants(), before)
})

await t.test('a late archive delays nothing but the archive, and shows in the metrics', async (t) => {
  await repair('mv /backups/pgbackrest /backups/away')
  await keep(6, 'Ash')
  await project.sql('select pg_switch_wal()')
  await project.compose('restart', 'backup')
  await until(() => metric('plant_store_archive_delay_seconds'), (seconds) => seconds > 0)
  t.ok(Number.isNaN(await metric('plant_store_backup_verified')), 'no backup, no damage')
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
