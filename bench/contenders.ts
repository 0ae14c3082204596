// Who is measured, and on what: the processes and their databases.
import { execFileSync, spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { openSync, readFileSync, writeFileSync } from 'node:fs'
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { createToken } from '../src/access/token-format.ts'
import { startEmbedded } from '../src/embedded/embedded.ts'
import { migrate } from '../src/database/migrate.ts'

export interface Contender { name: string, title: string, command: string[], ready: string, env?: Record<string, string> }
export interface Running { pid: number, url: string, startMs: number, [Symbol.asyncDispose]: () => Promise<void> }

const here = import.meta.dirname
export const folder = await mkdtemp(join(tmpdir(), 'plant-store-bench-'))
export const tokens = Array.from({ length: 2001 }, () => createToken())
export const tokensFile = join(folder, 'tokens')
writeFileSync(tokensFile, tokens.join('\n'))

/** The user of the last token, who holds 100,000 plants where a part of the benchmark gives them. */
export const collector = { username: '2000', token: tokens[2000] ?? '' }

export const found = (program: string) => spawnSync('which', [program]).status === 0

// Run as such it has the options for Node that its first line gives.
const program = join(here, '../src/main.ts')
export const service: Contender = {
  name: 'service',
  title: 'this service',
  command: [program],
  ready: '/readyz',
  // As in the image.
  env: { NODE_ENV: 'production', NODE_COMPILE_CACHE: join(folder, 'compile-cache') }
}
execFileSync('timeout', ['--preserve-status', '--signal=INT', '5', program],
  { env: { ...process.env, ...service.env, DATABASE_URL: 'postgres://127.0.0.1/none', PORT: '0' }, stdio: 'ignore' })

export const yardstick: Contender = {
  name: 'fastify', title: 'Fastify + pg, straightforward', command: [process.execPath, join(here, 'peers/fastify.ts')], ready: '/livez'
}

export function contenders (): Contender[] {
  const all = [service, yardstick, {
    name: 'express', title: 'Express 5 + pg', command: [process.execPath, join(here, 'peers/express.ts')], ready: '/livez'
  }]
  // Debian's packages: golang and golang-github-jackc-pgx-v4-dev.
  const binary = join(folder, 'plants')
  const built = spawnSync('go', ['build', '-o', binary, join(here, 'peers/plants.go')], {
    env: { ...process.env, GO111MODULE: 'off', GOPATH: '/usr/share/gocode' }, encoding: 'utf8'
  })
  if (built.status === 0) all.push({ name: 'go', title: 'Go net/http + pgx, token cached', command: [binary], ready: '/livez' })
  else console.log(`without the Go peer: ${built.error?.message ?? built.stderr}`)
  return all
}

async function freePort () {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}

const children = new Set<ChildProcess>()
let interrupted = false

/** Ends the contenders. What is being measured then fails, and everything is closed on the way out. */
export function interrupt () {
  interrupted = true
  for (const child of children) child.kill('SIGKILL')
}

/** Starts a contender as it would run for its users; logs go to a file. */
export async function start (contender: Contender, databaseUrl: string): Promise<Running> {
  if (interrupted) throw new Error('interrupted')
  const port = await freePort()
  const log = join(folder, `${contender.name}.log`)
  const output = openSync(log, 'w')
  const [file = '', ...args] = contender.command
  const began = performance.now()
  const child = spawn(file, args, {
    env: { PATH: process.env.PATH, HOME: process.env.HOME, DATABASE_URL: databaseUrl, PORT: String(port), ...contender.env },
    stdio: ['ignore', output, output]
  })
  children.add(child)
  const ended = once(child, 'exit').finally(() => children.delete(child))
  const url = `http://127.0.0.1:${port}`
  while (!await fetch(url + contender.ready).then((response) => response.ok, () => false)) {
    if (child.exitCode !== null || child.signalCode !== null) throw new Error(`${contender.title} ended: ${readFileSync(log, 'utf8')}`)
    await delay(10)
  }
  return {
    pid: child.pid ?? 0,
    url,
    startMs: performance.now() - began,
    async [Symbol.asyncDispose] () {
      child.kill('SIGKILL')
      await ended
    }
  }
}

/** A throwaway PostgreSQL with default settings, fsync on. */
export async function startPostgres () {
  // A user called postgres, to whom root gives the database, must reach it.
  await chmod(folder, 0o755)
  const server = await startEmbedded(folder)
  return {
    pid: Number(readFileSync(join(folder, 'postgresql/postmaster.pid'), 'utf8').split('\n')[0]),
    url: (database: string) => new URL(database, server.url).href,
    async [Symbol.asyncDispose] () {
      await server.close()
      await rm(folder, { recursive: true, force: true })
    }
  }
}

export async function withClient<T> (url: string, work: (client: pg.Client) => Promise<T>) {
  const client = new pg.Client(url)
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

/** A database with the service's own tables, and a user for each token. */
export async function createDatabase (url: string, username = (token: number) => String(token)) {
  const { pathname } = new URL(url)
  await withClient(new URL('/postgres', url).href, (client) => client.query(`create database ${pathname.slice(1)}`))
  await migrate(url, 'up')
  await withClient(url, (client) => client.query('insert into tokens (hash, username) select * from unnest($1::bytea[], $2::text[])',
    [tokens.map((token) => createHash('sha256').update(token).digest()), tokens.map((_, index) => username(index))]))
}
