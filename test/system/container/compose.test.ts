import t from 'tap'
import { buildImage, openProject, run, waitForStatus } from './support.ts'

await buildImage()
const project = await openProject(t)
await project.compose('up', '--detach')
await waitForStatus(`${await project.url()}/readyz`, 200)
const token = await project.token('alice')

async function call (method: string, path: string, body?: unknown, credential = token) {
  const response = await fetch(await project.url() + path, {
    method,
    headers: {
      authorization: `Bearer ${credential}`,
      ...body === undefined ? {} : { 'content-type': 'application/json' }
    },
    body: JSON.stringify(body)
  })
  const text = await response.text()
  return { status: response.status, body: text === '' ? undefined : JSON.parse(text) }
}

await t.test('the service has no capabilities and cannot write files', async t => {
  const sh = (script: string) => project.inside('plant-store', 'sh', '-c', script)
  t.equal(await sh('id --user; id --group'), '1000\n1000')
  t.match(await sh('tr "\\0" " " < /proc/1/cmdline'), /^node -.* \/app\/src\/main.ts serve$/,
    'the program is the first process')

  const status = await sh('cat /proc/1/status')
  for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) {
    t.match(status, new RegExp(`${set}:\\s0{16}\\n`))
  }
  t.match(status, /NoNewPrivs:\s1\n/)

  t.match(await sh('grep " / " /proc/mounts'), / ro,/)
  t.match(await sh('touch /tmp/x 2>&1 || true'), /Read-only file system/)
  t.equal(await sh('find /app ! -user root'), '', 'the code belongs to root')
})

await t.test('the role of the service has no rights beyond its own database', async t => {
  const isPowerful = await project.sql(`select rolsuper or rolcreaterole or rolcreatedb or rolreplication or
    rolbypassrls from pg_roles where rolname = 'plant_store'`)
  t.equal(isPowerful, 'f')
  t.equal(await project.sql("select has_database_privilege('plant_store', 'postgres', 'connect')"), 'f')
  const hasNoPassword = await project.sql(
    "select rolpassword is null from pg_authid where rolname = 'postgres'")
  t.equal(hasNoPassword, 't', 'the superuser has no password')
})

await t.test('a stop ends the service gracefully, and a new start finds the plants', async t => {
  await call('POST', '/plants', { id: 2, name: 'Ivy' })
  const container = await project.container('plant-store')
  await project.compose('stop', 'plant-store')
  t.equal(await run('inspect', '--format={{.State.ExitCode}}', container), '0')
  await project.compose('down')
  await project.compose('up', '--detach')
  await waitForStatus(`${await project.url()}/readyz`, 200)
  t.strictSame((await call('GET', '/plants')).body, [{ name: 'Ivy' }])
})

await t.test('a changed DATABASE_PASSWORD applies to the service and the database', async t => {
  // These characters would need percent-encoding in a URL.
  project.env.DATABASE_PASSWORD = "p/a?s'#1"
  await project.compose('up', '--detach')
  await waitForStatus(`${await project.url()}/readyz`, 200)
  t.equal((await call('GET', '/plants')).status, 200)

  const words = ['env', 'PGPASSWORD=plants', 'plant-store', 'token', 'list']
  await t.rejects(project.inside('plant-store', ...words), /password authentication failed/)
})
