// Runs three instances behind HAProxy with TLS, with the commands of docs/operating.md and docs/runbook.md.
import { once } from 'node:events'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { connect } from 'node:tls'
import t from 'tap'
import { createToken } from '../../../src/access/tokens.ts'
import { sql } from '../../support/database.ts'
import { createRandom } from '../faults/random.ts'
import { counted } from '../faults/storm.ts'
import { startWriters } from '../faults/writers.ts'
import { openOperator } from './operator.ts'
import { base, buildNextImage, findImage, image, run, until, waitForStatus } from './support.ts'

const instances = ['plant-store-1', 'plant-store-2', 'plant-store-3']
const next = 'localhost/plant-store:test-next'

const { project, folder, follow } = await openOperator(t, 'rolling', 'tls')
await buildNextImage(next, 'alter table plants add column height integer;')
// The proxy must notice that an instance stops.
delete project.env.DRAIN_DELAY
const CERTS = join(folder, 'certificates')
Object.assign(project.env, {
  CERTS,
  FAILED_AUTH_RATE: '20/m',
  HAPROXY_IMAGE: await findImage('haproxy:3.4'),
  // All load comes from one address, and the proxy's default limit per address would throttle this load.
  REQUESTS_PER_10_SECONDS: '1000000',
  TLS: join(folder, 'tls'),
  TLS_PORT: '127.0.0.1:0'
})
t.comment(`proxy: ${project.env.HAPROXY_IMAGE}`)

/** Writes new files, as Certbot does. */
const certify = () => project.sh('openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=proxy -days 2 ' +
  '-addext subjectAltName=DNS:proxy -keyout privkey.pem -out fullchain.pem', {}, CERTS)
const tls = (block: number, environment = {}) => follow('TLS for the instances', environment, block)
const log = async (service: string) => run('logs', await project.container(service))

await mkdir(CERTS)
await certify()
await tls(0)
await tls(1)
for (const instance of instances) await project.healthy(instance)
const url = await project.url('proxy')
await waitForStatus(`${url}/readyz`, 200)

/** Returns a database URL for a login of the role. */
const loginOf = async (username: string, password: string) =>
  Object.assign(new URL(await project.databaseUrl('database')), { username, password }).href
const oldLogin = () => loginOf('plant_store', 'plants')
const newPassword = 'p/a?s\'s"w#o\\rd'
const newLogin = () => loginOf('plant_store_2', newPassword)

// Without a pause, the load takes all processors, and a start of an instance takes over a minute.
const { acknowledged, ledger, stop } =
  await startWriters(await oldLogin(), [url], createRandom(Date.now()), 100)

await t.test('rotating the database password under load fails no request', async (t) => {
  await acknowledged(100)
  const section = 'Rotate the database password'
  await follow(section, { NEW_USER: 'plant_store_2', NEW_PASSWORD: newPassword })
  Object.assign(project.env, { DATABASE_USER: 'plant_store_2', DATABASE_PASSWORD: newPassword })
  await follow(section, { OLD_USER: 'plant_store', NEW_USER: 'plant_store_2' }, 1)
  await acknowledged(100)
  t.equal(await project.sql(`select string_agg(distinct usename, ',') from pg_stat_activity
    where application_name = 'plant-store'`), 'plant_store_2')
  t.equal(ledger.failed(), 0)
  await t.rejects(sql(await oldLogin(), 'select'), { code: '28000' })
  const dump = await project.compose('run', '-T', '--rm', '--no-deps', 'tools', 'pg_dump', '--schema-only')
  t.match(dump, /OWNER TO plant_store;/)
})

await t.test('an upgrade migrates, and the old version still runs and starts beside it', async (t) => {
  const replace = async (instance: string, by: string) => {
    project.env.PLANT_STORE_IMAGE = by
    await project.compose('up', '--detach', '--no-deps', '--force-recreate', instance)
    await project.healthy(instance)
  }
  const columns = () => project.sql(`select count(*) from information_schema.columns
    where table_name = 'plants' and column_name = 'height'`)
  t.equal(await columns(), '0')
  await replace('plant-store-1', next)
  t.equal(await columns(), '1')
  await replace('plant-store-2', image)
  await acknowledged(100)
  const breaches = await stop(await newLogin())
  t.comment(counted(ledger.counts))
  t.equal(ledger.failed(), 0)
  t.strictSame(breaches, [], 'an order of the requests explains every response')
})

await t.test('the runbook\'s commands reach every instance', async (t) => {
  await follow('Log at debug for a moment')
  for (const instance of instances) {
    await until(() => log(instance), (text) => text.includes('the log level is debug'))
  }
  const shown = await follow('When something is wrong')
  for (const instance of instances) t.match(shown, new RegExp(`${instance}[-_]1 +\\|`), instance)
})

/** Starts a container with an address of its own. Returns a function that sends requests with tokens. */
async function openClient () {
  const id = await run('run', '--detach', '--init', `--network=${project.network}`,
    `--volume=${CERTS}:/certificates:ro`, '--env=NODE_EXTRA_CA_CERTS=/certificates/fullchain.pem', base,
    'sleep', 'infinity')
  /** Returns the status of a list with each token. */
  return async (tokens: string[]): Promise<number[]> =>
    JSON.parse(await run('exec', id, 'node', '--input-type=module', '--eval', `
      const statuses = []
      for (const token of ${JSON.stringify(tokens)}) {
        const headers = { authorization: 'Bearer ' + token }
        const response = await fetch('https://proxy:3443/plants', { headers })
        statuses.push(response.status)
        await response.arrayBuffer()
      }
      console.log(JSON.stringify(statuses))`))
}

await t.test('a client with bad tokens locks out only itself', async (t) => {
  const token = await project.token('alice', 'plant-store-1')
  const [attacker, client] = [await openClient(), await openClient()]
  const bad = (length: number) => Array.from({ length }, createToken)
  t.strictSame([...new Set(await attacker(bad(120)))].sort(), [401, 429])
  // Each instance lets an address send another bad token every three seconds. The attacker uses them up.
  const [attack, statuses] = await Promise.all([attacker(bad(120)), client([token, ...bad(1), token])])
  t.ok(attack.filter((status) => status === 429).length > 60)
  t.strictSame(statuses, [200, 401, 200])
})

/** Returns the serial number of the certificate that HAProxy sends. */
async function serial (): Promise<string> {
  const [host, port] = (await run('port', await project.container('proxy'), '3443/tcp')).split(':')
  const socket = connect({ host, port: Number(port), rejectUnauthorized: false })
  await once(socket, 'secureConnect')
  const { serialNumber } = socket.getPeerCertificate()
  socket.destroy()
  return serialNumber
}

await t.test('a renewed certificate is used after a reload, and a broken file changes nothing', async (t) => {
  const before = await serial()
  await certify()
  await tls(0)
  await tls(2)
  const renewed = await until(serial, (number) => number !== before)
  await writeFile(join(CERTS, 'fullchain.pem'), 'no certificate')
  await t.rejects(tls(0), /unable to load certificate/)
  await run('restart', await project.container('proxy'))
  t.equal(await until(() => serial().catch(() => ''), (number) => number !== ''), renewed)
})

await t.test('without the database, the proxy forwards the responses of the instances', async (t) => {
  const url = await project.url('proxy')
  const get = async (headers: Record<string, string>) => {
    const response = await fetch(`${url}/plants`, { headers })
    const { error } = await response.json() as { error: number }
    return { status: response.status, error, retryAfter: response.headers.get('retry-after') }
  }
  const token = await project.token('carol', 'plant-store-1')
  const database = await project.container('database')
  await run('stop', database)
  await waitForStatus(`${url}/readyz`, 503)
  // Wait until the proxy has noticed that no instance is ready.
  const logOfProxy = () => project.compose('logs', '--no-color', 'proxy')
  await until(logOfProxy, (text) => text.includes('ready has no server available'))
  t.match(await get({ authorization: `Bearer ${token}` }), { status: 503, error: 50301, retryAfter: '1' })
  t.match(await get({}), { status: 401, error: 40101 })
  t.equal((await fetch(`${url}/livez`)).status, 200)

  await run('start', database)
  await project.healthy('database')
  await t.resolves(sql(await newLogin(), 'select'))
  await t.rejects(sql(await oldLogin(), 'select'), { code: '28000' }, 'a restart lets no locked role in')
})
