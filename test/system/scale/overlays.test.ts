// Starts combinations of compose files. test/system/container/overlays.test.ts checks all combinations.
import t from 'tap'
import { findImage, run, until, waitForStatus } from '../container/support.ts'
import { missing, startProject } from './support.ts'

const haproxy = { HAPROXY_IMAGE: await findImage('haproxy:3.4') }
const instances = ['plant-store-1', 'plant-store-2', 'plant-store-3']

async function create (url: string, token: string, id: number): Promise<number> {
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
  const body = JSON.stringify({ id, name: 'Fern' })
  return (await fetch(`${url}/plants`, { method: 'POST', headers, body })).status
}

await t.test('three instances with a pool use only the pool', {
  skip: await missing('edoburu/pgbouncer:v1.24.1-p1')
}, async (t) => {
  const project = await startProject(t, ['rolling', 'pgbouncer'], haproxy)
  for (const instance of instances) await project.healthy(instance)
  const url = await project.url('proxy')
  await waitForStatus(`${url}/readyz`, 200)
  t.equal(await create(url, await project.token('alice', 'plant-store-1'), 1), 200)
  const { hostname } = new URL(await project.databaseUrl('pool'))
  t.equal(await project.sql(`select string_agg(distinct host(client_addr), ',') from pg_stat_activity
    where usename = 'plant_store'`), hostname)
})

await t.test('three instances with failover and backups follow a new primary', async (t) => {
  const project = await startProject(t, ['rolling', 'backup', 'failover'], haproxy)
  for (const instance of instances) await project.healthy(instance)
  const url = await project.url('proxy')
  const token = await project.token('alice', 'plant-store-1')
  t.equal(await create(url, token, 1), 200)
  const list = async () => run('exec', await project.container('database-2'), 'patronictl', 'list')
  const listed = await until(list, (text) => /Sync Standby .* streaming/.test(text))
  const [, primary = ''] = /^\| (\S+) .* Leader /m.exec(listed) ?? []
  await run('kill', await project.container(primary))
  await until(() => create(url, token, 2), (status) => status === 200)
})

await t.test('one instance with a pool and backups is backed up', {
  skip: await missing('edoburu/pgbouncer:v1.24.1-p1')
}, async (t) => {
  const project = await startProject(t, ['backup', 'pgbouncer'])
  await until(() => project.inside('backup', 'pgbackrest', 'info'), (text) => text.includes('full backup'))
})
