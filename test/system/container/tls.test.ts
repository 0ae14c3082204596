// Runs three instances behind HAProxy with TLS, with the commands of docs/operating.md.
import { once } from 'node:events'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { connect } from 'node:tls'
import t from 'tap'
import { createToken } from '../../../src/access/tokens.ts'
import { openOperator } from './operator.ts'
import { base, findImage, run, until, waitForStatus } from './support.ts'

const { project, folder, follow } = await openOperator(t, 'rolling', 'tls')
const CERTS = join(folder, 'certificates')
Object.assign(project.env, {
  CERTS,
  FAILED_AUTH_RATE: '20/m',
  HAPROXY_IMAGE: await findImage('haproxy:3.4'),
  TLS: join(folder, 'tls'),
  TLS_PORT: '127.0.0.1:0'
})
const section = 'TLS for the instances'

/** Writes new files, as Certbot does. */
const certify = () => project.sh('openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=proxy -days 2 ' +
  '-addext subjectAltName=DNS:proxy -keyout privkey.pem -out fullchain.pem', {}, CERTS)

/** Returns the serial number of the certificate that HAProxy sends. */
async function serial (): Promise<string> {
  const [host, port] = (await run('port', await project.container('proxy'), '3443/tcp')).split(':')
  const socket = connect({ host, port: Number(port), rejectUnauthorized: false })
  await once(socket, 'secureConnect')
  const { serialNumber } = socket.getPeerCertificate()
  socket.destroy()
  return serialNumber
}

await mkdir(CERTS)
await certify()
await follow(section)
await follow(section, {}, 1)
await waitForStatus(`${await project.url('proxy')}/readyz`, 200)

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

await t.test('a renewed certificate is used after a reload, and a broken file changes nothing', async (t) => {
  const before = await serial()
  await certify()
  await follow(section)
  await follow(section, {}, 2)
  const renewed = await until(serial, (number) => number !== before)
  await t.rejects(follow(section, { CERTS: '' }), /unable to load certificate/)
  await writeFile(join(CERTS, 'fullchain.pem'), 'no certificate')
  await t.rejects(follow(section), /unable to load certificate/)
  await project.compose('restart', 'proxy')
  t.equal(await until(() => serial().catch(() => ''), (number) => number !== ''), renewed)
})
