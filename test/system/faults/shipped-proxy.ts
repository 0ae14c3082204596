// Starts nginx or HAProxy in front of the service, with the configuration in deploy/.
import { execFile, spawn } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import { freePort } from '../../support/free-port.ts'
import { hasEnded } from '../../support/processes.ts'
import type { Scope } from '../../support/program.ts'
import { createClient } from './client.ts'

const deploy = join(import.meta.dirname, '../../../deploy')

/** The attacker has ten addresses. The proxies limit each to 200 connections and 500 requests a second. */
export const attackerAddresses = Array.from({ length: 10 }, (_, index) => `127.0.1.${index + 1}`)
export const maxAttackConnections = 2000
/** The addresses of idle connections, which also count toward the limit of an address. */
export const idleAddresses = Array.from({ length: 15 }, (_, index) => `127.0.3.${index + 1}`)
/** HAProxy accepts 3,900 connections. Some are left for the other users and the probes. */
export const maxProxyConnections = 3800
export const otherAddress = (index: number) => `127.0.2.${index + 1}`

const nginxMain = `${process.getuid?.() === 0 ? 'user root;' : ''} daemon off; pid pid;
  error_log stderr emerg; worker_processes auto; events { worker_connections 8000; }
  http { client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n`

// `edits` replace the addresses and paths of the shipped file, and put nginx's file into an `http` block.
const proxies = {
  nginx: (folder: string, port: number, service: string) => ({
    file: 'nginx.conf',
    url: `https://127.0.0.1:${port}`,
    edits: [
      [/listen 443/, `listen 127.0.0.1:${port}`],
      [/server 127\.0\.0\.1:3000/, `server ${service}`],
      [/\/etc\/nginx\/tls/g, folder],
      [/\/var\/log\/nginx\/access\.log/, '/dev/null'],
      [/^/, nginxMain],
      [/$/, '}']
    ] as const,
    args: ['-p', folder, '-e', 'stderr', '-c', 'proxy.conf']
  }),
  haproxy: (folder: string, port: number, service: string) => ({
    file: 'haproxy.cfg',
    url: `http://127.0.0.1:${port}`,
    edits: [
      [/bind :3000/, `bind 127.0.0.1:${port}`],
      [/\/usr\/local\/etc\/haproxy/g, deploy],
      [/plant-store-1:3000/g, service],
      [/^ *server (two|three) .*$/gm, '']
    ] as const,
    args: ['-db', '-f', join(folder, 'proxy.conf')]
  })
}

/** Starts `program`: nginx or haproxy. Returns the URL of the proxy. */
export async function startShippedProxy (
  scope: Scope, program: string, serviceUrl: string, bodyLimit: string | undefined
): Promise<string> {
  const create = proxies[program as keyof typeof proxies]
  if (create === undefined) throw new Error(`--behind: expected nginx or haproxy, got ${program}`)
  const folder = await mkdtemp(join(tmpdir(), 'shipped-proxy-'))
  scope.teardown(() => rm(folder, { recursive: true, force: true }))
  const { file, url, edits, args } = create(folder, await freePort(), new URL(serviceUrl).host)
  let shipped = await readFile(join(deploy, file), 'utf8')
  // An operator who sets BODY_LIMIT also changes this number (docs/operating.md).
  const bodyEdit = [/client_max_body_size \d+/, `client_max_body_size ${bodyLimit}`] as const
  for (const [pattern, replacement] of bodyLimit && program === 'nginx' ? [...edits, bodyEdit] : edits) {
    if (shipped.search(pattern) < 0) throw new Error(`deploy/${file} has no ${pattern}`)
    shipped = shipped.replace(pattern, replacement)
  }
  await writeFile(join(folder, 'proxy.conf'), shipped)
  await promisify(execFile)('openssl', ['req', '-x509', '-newkey', 'ed25519', '-nodes', '-subj=/CN=localhost',
    '-keyout', join(folder, 'plants.key'), '-out', join(folder, 'plants.crt')])
  const child = spawn(program, args, { stdio: ['ignore', 'ignore', 'inherit'] })
  scope.teardown(() => child.kill())
  const client = createClient(url)
  scope.teardown(client.close)
  while ((await client.get('/livez')).status !== 200) {
    if (hasEnded(child)) throw new Error(`--behind: ${program} does not start`)
    await delay(100)
  }
  return url
}
