// Starts nginx or HAProxy in front of the service, with the configuration in deploy/.
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import { freePort } from '../../support/free-port.ts'
import type { Scope } from '../../support/program.ts'
import { createClient } from './client.ts'

const deploy = join(import.meta.dirname, '../../../deploy')

/** The attacker has ten addresses. The proxies limit each to 200 connections and 500 requests a second. */
export const attackerAddresses = Array.from({ length: 10 }, (_, index) => `127.0.1.${index + 1}`)
export const maxAttackConnections = 2000
export const otherAddress = (index: number) => `127.0.2.${index + 1}`

// `edits` replace the addresses and paths of the shipped file. nginx includes its file in `main`.
const proxies = {
  nginx: (folder: string, port: number, service: string) => ({
    file: 'nginx.conf',
    url: `https://127.0.0.1:${port}`,
    edits: [
      [/listen 443/, `listen 127.0.0.1:${port}`],
      [/server 127\.0\.0\.1:3000/, `server ${service}`],
      [/\/etc\/nginx\/tls/g, folder],
      [/\/var\/log\/nginx\/access\.log/, '/dev/null']
    ] as const,
    args: ['-p', folder, '-e', 'stderr', '-c', 'main'],
    main: `${process.getuid?.() === 0 ? 'user root;' : ''} daemon off; pid pid; error_log stderr emerg;
      worker_processes auto; events { worker_connections 8000; } http { include proxy.conf; ${
      ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map((use) => `${use}_temp_path ${use};`).join(' ')
    } }`
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
    args: ['-db', '-f', join(folder, 'proxy.conf')],
    main: ''
  })
}

/** Starts `program`: nginx, haproxy, or a path to one of them. */
export async function startShippedProxy (scope: Scope, program: string, serviceUrl: string) {
  const create = proxies[basename(program) as keyof typeof proxies]
  if (create === undefined) throw new Error(`--behind: expected nginx, haproxy or a path, got ${program}`)
  const folder = await mkdtemp(join(tmpdir(), 'shipped-proxy-'))
  scope.teardown(() => rm(folder, { recursive: true, force: true }))
  const { file, url, edits, args, main } = create(folder, await freePort(), new URL(serviceUrl).host)
  let shipped = await readFile(join(deploy, file), 'utf8')
  for (const [pattern, replacement] of edits) {
    if (shipped.search(pattern) < 0) throw new Error(`deploy/${file} has no ${pattern}`)
    shipped = shipped.replace(pattern, replacement)
  }
  await writeFile(join(folder, 'proxy.conf'), shipped)
  await writeFile(join(folder, 'main'), main)
  await promisify(execFile)('openssl', ['req', '-x509', '-newkey', 'ed25519', '-nodes', '-subj=/CN=localhost',
    '-keyout', join(folder, 'plants.key'), '-out', join(folder, 'plants.crt')])

  const child = spawn(program, args, { stdio: ['ignore', 'ignore', 'pipe'] })
  const stop = () => { child.kill() }
  scope.teardown(stop)
  let stderr = ''
  child.stderr.on('data', (chunk) => { stderr += chunk })
  const ended = once(child, 'exit').then(() => stderr, (error) => error.message)
  const client = createClient(url)
  for (let attempt = 0; (await client.get('/livez')).status !== 200; attempt++) {
    const reason = await Promise.race([ended, delay(100)])
    if (reason !== undefined || attempt > 100) {
      throw new Error(`--behind: ${program} does not start: ${reason ?? stderr}`)
    }
  }
  client.close()
  return { url, stop }
}
