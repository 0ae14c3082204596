import { mkdir, readdir, readFile, stat, truncate, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { openOperator } from './operator.ts'
import { run, until } from './support.ts'

const { project, folder, follow, plants, keep, ready } = await openOperator(t, 'archive')
const archive = join(folder, 'archive')
project.env.ARCHIVE = archive

/** Returns the matching files in the archive of the system that runs now. */
async function archived (pattern: RegExp): Promise<string[]> {
  const system = await project.sql('select system_identifier from pg_control_system()')
  const names = await readdir(join(archive, system)).catch(() => [])
  return names.filter((name) => pattern.test(name)).sort()
}
const segment = /^[0-9A-F]{24}\.gz$/
const base = /^base-.*\.gz$/
const now = () => project.sql('select now()')
const backUp = () => project.compose('run', '-T', '--rm', 'archive', 'once')
/** Runs the commands of the runbook. Without a time, recovers as much as there is. */
const recover = async (time = '') => {
  const shown = await follow('Recover to a point in time', { UNTIL: time })
  await follow('Revoke and erase again')
  await ready()
  return shown
}

await mkdir(archive)
await follow('Archive every write')
await ready()
await until(() => archived(base), ({ length }) => length === 1)
await follow('Save the revocations')

const times: string[] = []

await t.test('the database goes back to a point in time', async (t) => {
  await keep(1, 'Fern')
  times.push(await now())
  await keep(2, 'Ivy')
  times.push(await now())
  await keep(3, 'Mistake')
  await recover(times[0])
  t.equal(await plants(), 'Fern')
  await keep(4, 'Oak')
  times.push(await now())
  t.equal(await plants(), 'Fern,Oak', 'the database accepts writes')
})

await t.test('a repeated recovery returns to what there was at a moment, on any timeline', async (t) => {
  await recover(times[1])
  t.equal(await plants(), 'Fern,Ivy', 'a later moment, before the first recovery')
  await recover(times[2])
  t.equal(await plants(), 'Fern,Oak', 'a moment after the first recovery')
  await recover()
  t.equal(await plants(), 'Fern,Oak', 'as much as there is')
})

await t.test('a recovery that cannot succeed changes nothing', async (t) => {
  const before = await plants()
  await project.compose('stop')
  t.equal(await project.exitCode('archive'), '143', 'the schedule ends at SIGTERM, and need not be killed')
  const cases: Array<[string, RegExp]> = [
    [new Date().toISOString(), /ended before configured recovery target.*changed nothing/s],
    ['2099-01-01', /is in the future/],
    ['2001-01-01', /no base backup that was complete at 2001-01-01/],
    ['tomorrow or so', /Expected a moment/]
  ]
  for (const [time, reason] of cases) {
    await t.rejects(follow('Recover to a point in time', { UNTIL: time }), reason, time)
  }
  await project.compose('up', '--detach')
  await ready()
  t.equal(await plants(), before)
  const recovery = (...options: string[]) => project.compose('run', '-T', '--no-deps', ...options,
    '--entrypoint=sh', 'database', '/backup/log.sh', 'recover')
  await t.rejects(recovery('--rm'), /The database still runs/)

  await project.compose('stop')
  const name = `${project.env.COMPOSE_PROJECT_NAME}-killed`
  const killed = t.rejects(recovery('--name', name))
  await until(() => run('logs', name).catch(() => ''), (log) => log.includes('Recovers all writes'))
  await run('kill', name)
  await killed
  await project.compose('up', '--detach')
  await ready()
  t.equal(await plants(), before, 'a recovery that is killed changes nothing')
  await recover()
  t.equal(await plants(), before, 'and can be repeated')
})

await t.test('a write after a start survives the loss of the disk', async (t) => {
  const database = await project.container('database')
  // Without a reload after the start, most starts archive nothing until the next checkpoint.
  await project.sql('alter system set checkpoint_timeout = \'1h\'')
  await run('restart', database)
  await ready()
  const before = await archived(segment)
  await keep(5, 'Elm')
  await until(() => archived(segment), ({ length }) => length > before.length)
  await run('kill', database)
  await project.compose('down', '--volumes')
  await recover()
  t.equal(await plants(), 'Fern,Oak,Elm')
})

await t.test('only the log that a kept base backup needs stays in the archive', async (t) => {
  await backUp()
  await keep(6, 'Ash')
  const beforeOldest = (await archived(segment)).at(-1) as string
  await backUp()
  await backUp()
  t.equal((await archived(base)).length, 2)
  const kept = await archived(segment)
  t.ok(kept.length > 0 && kept.every((name) => name > beforeOldest), 'older segments are deleted')
  await recover()
  t.equal(await plants(), 'Fern,Oak,Elm,Ash')
})

await t.test('the archive is unhealthy while the log or a base backup is late', async (t) => {
  const container = await project.container('archive')
  const check = () => run('exec', container, 'sh', '-c', 'sh /backup/base.sh healthy; echo $?')
  /** Sets back the times of files. Returns a function that restores them. */
  async function age (pattern: RegExp, seconds: number) {
    const system = await project.sql('select system_identifier from pg_control_system()')
    const files = (await archived(pattern)).map((name) => join(archive, system, name))
    const shift = (by: number) => Promise.all(files.map(async (file) => {
      const time = (await stat(file)).mtimeMs / 1000 + by
      await utimes(file, time, time)
    }))
    await shift(-seconds)
    return () => shift(seconds)
  }
  t.equal(await check(), '0')
  for (const [pattern, seconds] of [[segment, 900], [base, 2 * 168 * 3600]] as const) {
    const restore = await age(pattern, seconds)
    t.equal(await check(), '1')
    await restore()
    t.equal(await check(), '0')
  }
})

await t.test('a damaged file in the archive does not shorten the recovery unnoticed', async (t) => {
  await keep(7, 'Fig')
  await project.compose('stop')
  const [system = ''] = await readdir(archive)
  const names = await readdir(join(archive, system))
  const file = join(archive, system, names.filter((name) => segment.test(name)).sort().at(-1) as string)
  const whole = await readFile(file)
  await truncate(file, whole.length - 20)
  await t.rejects(follow('Recover to a point in time', { UNTIL: '' }), /changed nothing/)
  await writeFile(file, whole)
  await recover()
  const fetch = (from: string) => project.inside('database', 'sh', '-c',
    `sh /backup/log.sh fetch ${from} 0 /tmp/0; echo $?`)
  t.equal(await fetch(`/archive/${system}`), '1', 'the end of the archive')
  t.equal(await fetch('/archive/0'), '126', 'the archive is gone')
  t.equal(await plants(), 'Fern,Oak,Elm,Ash,Fig')
})

await t.test('a restore into a new database continues the archive, which reaches back further', async (t) => {
  const time = await now()
  await follow('Back up')
  const dump = (await readdir(join(folder, 'backups'))).find((name) => name.endsWith('.dump')) as string
  await keep(8, 'Mistake')
  await follow('Restore into a new database', { BACKUP: join(folder, 'backups', dump) })
  await follow('Revoke and erase again')
  await ready()
  t.equal((await readdir(archive)).length, 2, 'the new system has a folder of its own')
  await until(() => archived(base), ({ length }) => length === 1)
  await keep(9, 'Bay')
  await recover(await now())
  t.equal(await plants(), 'Fern,Oak,Elm,Ash,Fig,Bay')
  await recover(time)
  t.equal(await plants(), 'Fern,Oak,Elm,Ash,Fig', 'from the archive of the former system')
  const folders = () => project.inside('database', 'sh', '-c', 'ls "$(dirname "$PGDATA")"')
  t.not(await folders(), 'docker')
  await follow('Revoke and erase again', {}, 1)
  t.equal(await folders(), 'docker', 'the old data are deleted')
})
