import { mkdir, readdir, readFile, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { openOperator } from './operator.ts'
import { run, until } from './support.ts'

const { project, folder, follow, plants, keep, ready } = await openOperator(t, 'backup')
const backups = join(folder, 'backups')
Object.assign(project.env, { BACKUPS: backups, BACKUP_KEEP: '2' })
const dumps = async (prefix: string) =>
  (await readdir(backups)).filter((name) => name.startsWith(prefix) && name.endsWith('.dump')).sort()
const newest = async (prefix: string) =>
  ({ BACKUP: join(backups, (await dumps(prefix)).at(-1) as string) })

await project.compose('up', '--detach')
await ready()

/** Returns the status of a list with the token. */
const status = async (token: string) =>
  (await fetch(`${await project.url()}/plants`, { headers: { authorization: `Bearer ${token}` } })).status
const idOf = (user: string) => project.sql(`select id from tokens where username = '${user}'`)

await t.test('after a restore into a running service, revoked tokens and erased users stay so', async (t) => {
  await keep(1, 'Fern')
  const alices = await project.token('alice')
  const bobs = await project.token('bob')
  const daves = await project.token('dave')
  await project.sql("insert into plants (owner, id, name) values ('dave', 9, 'Oak')")
  await follow('Back up')
  await keep(2, 'Moss')
  await project.inside('plant-store', 'plant-store', 'token', 'revoke', await idOf('bob'))
  await project.inside('plant-store', 'plant-store', 'user', 'erase', 'dave', '--yes')
  await writeFile(join(backups, 'erased.txt'), 'dave\n')

  await follow('Save the revocations')
  await follow('Restore into a running service', await newest('plants'))
  t.equal(await plants(), 'Fern,Oak', 'the erased user is back')
  t.equal(await project.sql('select count(*) from tokens where revoked_at is null'), '3')
  t.notMatch(await follow('Revoke and erase again'), /NOT ERASED/)
  t.equal(await plants(), 'Fern')
  t.equal(await project.sql("select count(*) from tokens where username = 'dave'"), '0')
  t.strictSame(await Promise.all([alices, bobs, daves].map(status)), [200, 401, 401])

  await t.rejects(follow('Revoke and erase again', { BACKUPS: folder }), /revoked\.txt/, 'another folder')
  await follow('Revoke and erase again')
  t.equal(await status(alices), 200, 'a repetition changes nothing')
  await follow('Revoke all tokens')
  await until(() => status(alices), (code) => code === 401)
  await follow('Restore into a running service', await newest('plants'))
  await follow('Revoke and erase again')
  t.equal(await status(alices), 401, 'the list has all tokens')
})

await t.test('the schedule keeps its newest backups, and they can be restored', async (t) => {
  const [first] = await until(() => dumps('scheduled'), ({ length }) => length === 1)
  await follow('Back up on a schedule')
  t.equal((await dumps('scheduled')).length, 2)
  await project.compose('run', '-T', '--rm', 'backup', 'once')
  const kept = await dumps('scheduled')
  t.equal(kept.length, 2)
  t.ok(kept.every((name) => name > (first as string)))
  t.equal((await dumps('plants')).length, 1, 'no other backup is deleted')
  await keep(3, 'Elm')
  await follow('Restore into a running service', await newest('scheduled'))
  t.equal(await plants(), 'Fern')
})

await t.test('the schedule lists revoked tokens, and a restore removes none from the list', async (t) => {
  const list = () => readFile(join(backups, 'revoked.txt'), 'utf8')
  /** Revokes a new token. Restarts the schedule, which otherwise waits for a minute. */
  async function revoke (user: string) {
    await project.token(user)
    const id = await idOf(user)
    await project.inside('plant-store', 'plant-store', 'token', 'revoke', id)
    await project.compose('restart', 'backup')
    return { id, listed: await until(list, (text) => text.includes(id)) }
  }
  const { id } = await revoke('erin')
  await follow('Restore into a running service', await newest('scheduled'))
  t.equal(await idOf('erin'), '')
  t.match((await revoke('frank')).listed, id)
})

/** Runs shell lines in a container of the service `backup`, with `path` as its folder /backups. */
const inBackup = async (path: string, lines: string) => (await project.sh(
  'docker compose run -T --rm --no-deps --entrypoint sh backup -c "$LINES"', { BACKUPS: path, LINES: lines }
)).trim()

await t.test('wrong numbers end the schedule with a clear message, and delete nothing', async (t) => {
  const before = await readdir(backups)
  const values = ['', '0', '0.5', '12h', '08', '-1', 'all', ' 1', '10000', '1 2', '$(id)']
  for (const name of ['BACKUP_HOURS', 'BACKUP_KEEP']) {
    const lines = ['', 'once', 'healthy'].flatMap((word) => values.map((value) =>
      `${name}='${value}' timeout 5 sh /backup/dump.sh ${word} 2>&1; echo $?`))
    const said = (await inBackup(backups, lines.join('\n'))).replaceAll(/\n(\d)$/gm, ' $1').split('\n')
    const expected = values.map((value) =>
      `${name} must be a whole number from 1 to 9999 without a unit, not '${value}' 1`)
    t.strictSame(said, [...expected, ...expected, ...expected])
  }
  const wrong = project.compose('run', '-T', '--rm', '--no-deps', 'backup', 'now')
  await t.rejects(wrong, /expected no argument, once or healthy, not 'now'/)
  t.strictSame(await readdir(backups), before)
})

await t.test('the schedule is unhealthy without a recent backup', async (t) => {
  const age = async (time: string) => {
    const path = join(folder, time.replaceAll(' ', '-'))
    await mkdir(path)
    return inBackup(path, `touch --date='${time}' /backups/scheduled-20270131T140500Z.dump &&
      { sh /backup/dump.sh healthy; echo $?; }`)
  }
  t.equal(await age('40 hours ago'), '0')
  t.equal(await age('49 hours ago'), '1')
  t.equal(await age('300 hours'), '1', 'a wrong clock has left a backup from the future')
})

await t.test('backups from the future neither replace new ones nor are deleted', async (t) => {
  const path = join(folder, 'future')
  await mkdir(path)
  for (const year of [2001, 2002, 2098, 2099]) {
    const file = join(path, `scheduled-${year}0131T140500Z.dump`)
    await writeFile(file, '')
    await utimes(file, new Date(`${year}`), new Date(`${year}`))
  }
  t.match(await inBackup(path, 'sh /backup/dump.sh once'), /^stored /)
  const years = (await readdir(path)).map((name) => name.slice(10, 14)).sort()
  t.strictSame(years, ['2002', `${new Date().getUTCFullYear()}`, '2098', '2099'])
})

await t.test('a killed backup leaves the others unchanged, and its part is deleted later', async (t) => {
  const before = await dumps('')
  const held = project.sql('begin; lock plants; select pg_sleep(600)').catch(() => {})
  const holders = "from pg_locks where mode = 'AccessExclusiveLock'"
  await until(() => project.sql(`select count(*) ${holders}`), (count) => count !== '0')
  const name = `${project.env.COMPOSE_PROJECT_NAME}-killed`
  const killed = t.rejects(
    project.compose('run', '-T', '--rm', '--no-deps', '--name', name, 'backup', 'once'))
  const parts = async () => (await readdir(backups)).filter((file) => file.endsWith('.part'))
  const [part] = await until(parts, ({ length }) => length === 1)
  await run('kill', name)
  await killed
  t.strictSame(await dumps(''), before)
  await project.sql(`select pg_terminate_backend(pid) ${holders}`)
  await held
  const once = () => project.compose('run', '-T', '--rm', '--no-deps', 'backup', 'once')
  await once()
  t.strictSame(await parts(), [part], 'it might still be in use')
  await utimes(join(backups, part as string), 0, 0)
  await once()
  t.strictSame(await parts(), [])
})

await t.test('a restore into a running service can be ended, and then changes nothing', async (t) => {
  await keep(5, 'Ash')
  const held = project.sql('begin; lock plants; select pg_sleep(600)').catch(() => {})
  const locks = (which: string) => project.sql(`select count(*)
    from pg_locks join pg_stat_activity using (pid) where relation = 'plants'::regclass and ${which}`)
  await until(() => locks("mode = 'AccessExclusiveLock'"), (count) => count !== '0')
  const ended = t.rejects(
    follow('Restore into a running service', await newest('plants')), /terminating connection/)
  await until(() => locks("application_name = 'pg_restore'"), (count) => count !== '0')
  await follow('Restore into a running service', {}, 1)
  await ended
  await project.sql("select pg_terminate_backend(pid) from pg_locks where mode = 'AccessExclusiveLock'")
  await held
  t.match(await plants(), /Ash/)
  await project.sql('delete from plants where id = 5')
})

await t.test('a failed backup leaves the other backups unchanged', async (t) => {
  const before = await readdir(backups)
  await project.sql('alter role plant_store nologin')
  const failed = project.compose('run', '-T', '--rm', '--no-deps', 'backup', 'once')
  await t.rejects(failed, /2 older ones are unchanged/)
  await project.sql('alter role plant_store login')
  await project.sql('create database empty owner plant_store', 'postgres')
  const empty = ['-e', 'DATABASE_URL=postgres://database/empty']
  const withoutTables = project.compose('run', '-T', '--rm', '--no-deps', ...empty, 'backup', 'once')
  await t.rejects(withoutTables, /no table "tokens".*2 older ones are unchanged/s)
  t.strictSame(await readdir(backups), before)
  await project.compose('stop', 'backup', 'database')
  t.equal(await project.exitCode('backup'), '143', 'the schedule ends at SIGTERM, and need not be killed')
  await t.rejects(follow('Back up'))
  t.strictSame((await readdir(backups)).filter((name) => !name.endsWith('.part')), before)
  await project.compose('start', 'database', 'backup')
  await ready()
})

await t.test('a backup is restored into a new database, but a truncated one changes nothing', async (t) => {
  const truncated = { BACKUP: join(folder, 'truncated.dump') }
  const whole = await readFile((await newest('plants')).BACKUP)
  await writeFile(truncated.BACKUP, whole.subarray(0, -20))
  await t.rejects(follow('Restore into a new database', truncated))
  t.equal(await plants(), 'Fern')
  await keep(4, 'Oak')
  await follow('Restore into a new database', await newest('plants'))
  await follow('Revoke and erase again')
  await ready()
  t.equal(await plants(), 'Fern')
})
