import t from 'tap'
import { runbook } from './operator.ts'
import { buildImage, openProject, run, until } from './support.ts'

await buildImage()
const project = await openProject(t)
await project.compose('up', '--detach')
await project.ready()
const authorization = `Bearer ${await project.token('alice')}`

/** Creates a plant if there is a body, otherwise lists the plants. Returns the body of the response. */
async function send (body?: string): Promise<unknown> {
  const headers = { authorization, 'content-type': 'application/json' }
  const method = body === undefined ? 'GET' : 'POST'
  return (await fetch(`${await project.url()}/plants`, { method, headers, body })).json()
}

await t.test('the service has no capabilities and cannot write files', async t => {
  const sh = (script: string) => project.inside('plant-store', 'sh', '-c', script)
  t.equal(await sh('id --user; id --group'), '1000\n1000')
  const find = 'for p in /proc/[0-9]*; do [ "$(readlink $p/exe)" = /usr/local/bin/node ] && echo $p; done'
  const [program = ''] = (await sh(`${find}; true`)).split('\n')
  t.match(await sh(`tr "\\0" " " < ${program}/cmdline`), /^node -.* \/app\/src\/main.ts serve$/)
  const status = await sh(`cat ${program}/status`)
  for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) {
    t.match(status, new RegExp(`${set}:\\s0{16}\\n`))
  }
  t.match(status, /NoNewPrivs:\s1\n/)
  t.match(await sh('grep " / " /proc/mounts'), / ro,/)
  t.match(await sh('touch /tmp/x 2>&1 || true'), /Read-only file system/)
  t.equal(await sh('find /app ! -user root'), '', 'the code belongs to root')
})

await t.test('the role of the service has no rights beyond its own database', async t => {
  t.equal(await project.sql(`select rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls
    from pg_roles where rolname = 'plant_store'`), 'f')
  t.equal(await project.sql("select has_database_privilege('plant_store', 'postgres', 'connect')"), 'f')
  t.equal(await project.sql("select rolpassword is null from pg_authid where rolname = 'postgres'"), 't',
    'the superuser has no password')
})

await t.test('a signal that the service does not handle ends it, as without a container', async (t) => {
  const container = await project.container('plant-store')
  await run('kill', '--signal=ALRM', container)
  // Docker restarts no container after `docker kill`. 142 is 128 and the number of the signal.
  const state = () => run('inspect', '--format={{.State.ExitCode}}', container)
  t.equal(await until(state, (code) => code !== '0'), '142')
  await project.compose('start', 'plant-store')
  await project.ready()
})

await t.test('a stop ends the service gracefully, and an upgrade recreates all containers', async t => {
  await send('{"id":2,"name":"Ivy"}')
  const containers = () => Promise.all(['plant-store', 'database'].map(project.container))
  const before = await containers()
  await run('stop', before[0] as string)
  t.equal(await run('inspect', '--format={{.State.ExitCode}}', before[0] as string), '0')
  await project.sh(runbook.Upgrade?.[1] as string)
  await project.ready()
  for (const [index, id] of (await containers()).entries()) t.not(id, before[index])
  t.strictSame(await send(), [{ name: 'Ivy' }])
})

await t.test('an orphan process does not restart the database, which stops in time', async (t) => {
  const orphan = await project.inside('database', 'sh', '-c', 'sh -c "echo \\$\\$; sleep 1; exit 2" & exit')
  const isGone = () => project.inside('database', 'sh', '-c', `[ -e /proc/${orphan} ] || echo gone`)
  await until(isGone, (text) => text === 'gone')
  await project.compose('stop', 'database')
  const log = await project.compose('logs', '--no-color', 'database')
  t.notMatch(log, /terminating any other active server processes/)
  t.match(log, /database system is shut down\n*$/)
  await project.compose('start', 'database')
  await project.ready()
})

await t.test('a changed DATABASE_PASSWORD applies to the service and the database', async t => {
  // These characters would need percent-encoding in a URL.
  project.env.DATABASE_PASSWORD = "p/a?s'#1"
  await project.compose('up', '--detach')
  await project.ready()
  t.strictSame(await send(), [{ name: 'Ivy' }])
  const words = ['env', 'PGPASSWORD=plants', 'plant-store', 'token', 'list']
  await t.rejects(project.inside('plant-store', ...words), /password authentication failed/)
})
