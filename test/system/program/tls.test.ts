// Connects to a PostgreSQL server with TLS, as the parameters of DATABASE_URL say.
import { execFile } from 'node:child_process'
import { appendFile, chown } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { makeServer, runServer } from '../faults/postgres.ts'
import { unmeasured } from '../../support/program.ts'

t.test('certificates and channel binding are checked', async (t) => {
  const { url, dataDir, command } = await makeServer(t)
  const [certificate, key] = [join(dataDir, 'server.crt'), join(dataDir, 'server.key')]
  await promisify(execFile)('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes',
    '-subj=/CN=localhost', '-addext=subjectAltName=DNS:localhost', `-out=${certificate}`, `-keyout=${key}`])
  for (const file of [certificate, key]) await chown(file, command.uid, command.gid)
  await appendFile(join(dataDir, 'postgresql.auto.conf'), 'ssl = on\n')
  await runServer(t, command)

  const trusted = `sslrootcert=${certificate}`
  const ok = { code: 0, stdout: 'nothing to do\n' }
  const fails = (stderr: RegExp) => ({ code: 1, stderr })
  for (const [host, parameters, result] of [
    ['localhost', `sslmode=verify-full&${trusted}&channel_binding=require`, ok],
    ['localhost', `${trusted}&sslnegotiation=direct`, ok],
    ['127.0.0.1', 'sslmode=no-verify&channel_binding=require', ok],
    ['127.0.0.1', `sslmode=require&${trusted}`, fails(/does not match certificate's altnames/)],
    ['localhost', 'sslmode=require', fails(/Name the certificate file of the authority in DATABASE_URL/)],
    ['localhost', 'sslmode=verify-full&sslrootcert=system', fails(/self-signed certificate/)]
  ] as const) {
    const target = Object.assign(new URL(url), { hostname: host })
    const DATABASE_URL = `${target}?${parameters}`
    t.match(await unmeasured.run(['migrate'], { DATABASE_URL }), result, parameters)
  }
})
