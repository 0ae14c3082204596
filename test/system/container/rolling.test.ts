import t from 'tap'
import { startLoad } from './load.ts'
import { runbook } from './runbook.ts'
import { buildImage, buildNextImage, findImage, image, openProject, until, waitForStatus } from './support.ts'

t.setTimeout(290_000)

const instances = ['plant-store-1', 'plant-store-2', 'plant-store-3']
const next = 'localhost/plant-store:test-next'

await buildImage()
await buildNextImage(next, 'alter table plants add column height integer;')
const project = await openProject(t, 'rolling')
project.env.HAPROXY_IMAGE = await findImage('haproxy:3.4')
// All load comes from one address, and the proxy's default limit per address would throttle this load.
project.env.REQUESTS_PER_10_SECONDS = '1000000'
t.comment(`proxy: ${project.env.HAPROXY_IMAGE}`)

await project.compose('up', '--detach')
for (const instance of instances) await project.healthy(instance)
const url = await project.url('proxy')
await waitForStatus(`${url}/readyz`, 200)

async function replace (instance: string, by: string) {
  project.env.PLANT_STORE_IMAGE = by
  await project.compose('up', '--detach', '--no-deps', '--force-recreate', instance)
  await project.healthy(instance)
}

async function stored (token: string) {
  const response = await fetch(`${url}/plants`, { headers: { authorization: `Bearer ${token}` } })
  return await response.json()
}

await t.test('rotating the database password of three instances under load fails no request', async t => {
  const token = await project.token('alice', 'plant-store-1')
  const load = startLoad(t, { url, token })
  const [prepare, restart] = runbook['Rotate the database password'] as [string, string]
  await project.sh(prepare, { NEW_PASSWORD: 'another' })
  project.env.DATABASE_URL = 'postgres://plant_store_b:another@database/plant_store'
  await project.sh(restart)
  const result = await load.stop()

  t.comment(`${result.completed} requests completed, ${result.failures.length} failed`)
  t.strictSame(result.failures, [])
  t.strictSame(await stored(token), result.stored, 'acknowledged plants are stored')
  const roles = await project.sql(`select string_agg(distinct usename, ',') from pg_stat_activity
    where application_name = 'plant-store'`)
  t.equal(roles, 'plant_store_b')
})

await t.test('an upgrade migrates, and the old version still runs and starts beside it', async t => {
  const columns = () => project.sql(`select count(*) from information_schema.columns
    where table_name = 'plants' and column_name = 'height'`)
  t.equal(await columns(), '0')

  const token = await project.token('bob', 'plant-store-1')
  const load = startLoad(t, { url, token })
  await replace('plant-store-1', next)
  t.equal(await columns(), '1')
  await replace('plant-store-2', image)
  const result = await load.stop()

  t.comment(`${result.completed} requests completed, ${result.failures.length} failed`)
  t.strictSame(result.failures, [])
  t.strictSame(await stored(token), result.stored, 'acknowledged plants are stored')
})

await t.test("an instance logs the client's address as the proxy sees it", async t => {
  const { headers, status } = await fetch(`${url}/plants`, { headers: { 'x-forwarded-for': '192.0.2.1' } })
  t.equal(status, 401)
  const lineOf = async (...services: string[]) => {
    const line = new RegExp(`\\{.*${headers.get('x-request-id')}.*\\}`)
    const log = await until(() => project.compose('logs', '--no-color', ...services), log => line.test(log))
    return JSON.parse(line.exec(log)?.[0] as string) as { remoteAddress: string }
  }
  const { remoteAddress } = await lineOf(...instances)
  t.equal(remoteAddress, (await lineOf('proxy')).remoteAddress)
  const own = await project.inside('proxy', 'cat', '/etc/hosts')
  t.match(own, /^172|^10|^192/m)
  t.notMatch(own, new RegExp(`^${remoteAddress}\\s`, 'm'), 'the address is not the proxy\'s own')
})

await t.test('without database or instance, responses have the error shape and Retry-After', async t => {
  const get = async (path: string, token?: string) => {
    const headers: Record<string, string> = token === undefined ? {} : { authorization: `Bearer ${token}` }
    const response = await fetch(url + path, { headers })
    const { error } = await response.json() as { error: number }
    return { path, status: response.status, error, retryAfter: response.headers.get('retry-after') }
  }
  const token = await project.token('carol', 'plant-store-1')
  await project.compose('stop', 'database')
  await waitForStatus(`${url}/readyz`, 503)
  // Wait until the proxy has noticed that no instance is ready.
  const log = () => project.compose('logs', '--no-color', 'proxy')
  await until(log, (log) => log.includes('ready has no server available'))
  t.match(await get('/plants', token), { status: 503, error: 50301, retryAfter: '1' })
  t.match(await get('/plants'), { status: 401, error: 40101 })
  t.equal((await fetch(`${url}/livez`)).status, 200)

  await project.compose('kill', ...instances)
  await waitForStatus(`${url}/livez`, 503)
  for (const path of ['/plants', '/livez', '/readyz']) {
    t.match(await get(path, token), { status: 503, error: 50391, retryAfter: '1' }, path)
  }
})

await t.test('the proxy logs each request except probes', async t => {
  const log = await project.compose('logs', '--no-color', 'proxy')
  const lines = [...log.matchAll(/\{"level".*\}$/gm)].map(([line]) => JSON.parse(line))
  t.match(lines.find(({ status }) => status === 401),
    { method: 'GET', path: '/plants', instance: /one|two|three/, remoteAddress: /^\d/ })
  t.match(lines.find(({ status }) => status === 503), { path: '/plants' })
  t.notMatch(log, /livez|readyz/)
})
