// Runs contenders and one PostgreSQL server, which has a database for each contender.
import { spawn, type ChildProcess } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { openSync, readFileSync, writeFileSync } from 'node:fs'
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { createToken } from '../src/access/tokens.ts'
import { migrate } from '../src/database/migrate.ts'
import { startEmbedded } from '../dev/embedded-postgres.ts'
import { freePort } from '../test/support/free-port.ts'

export interface Contender {
  name: string
  title: string
  command: string[]
  /** How many processes share the port. By default, one. */
  processes?: number
  /** The benchmark requests this path until the status is below 500. Then the contender is ready. */
  ready: string
  env?: Record<string, string>
  /** The file with the tokens that the load sends. By default, the tokens are the service's own, not JWTs. */
  tokensFile?: string
}

interface Running {
  pids: number[]
  url: string
  startMs: number
  [Symbol.asyncDispose]: () => Promise<void>
}

/** A program to measure (a running contender or pgbench), and the program's database. */
export interface Entry {
  title: string
  url: string
  database: pg.Client
  /** The process ids of the contender. Empty for pgbench. */
  pids: number[]
  postgres: number
  tokensFile?: string | undefined
}

export const folder = await mkdtemp(join(tmpdir(), 'plant-store-bench-'))
const tokens = Array.from({ length: 2001 }, () => createToken())
export const tokensFile = join(folder, 'tokens')
writeFileSync(tokensFile, tokens.join('\n'))

/** The user of the last token. `pages.ts` and `unbounded.ts` give this user 100,000 plants. */
export const collector = { username: '2000', token: tokens[2000] ?? '' }

const children = new Set<ChildProcess>()
let interrupted = false

/** Kills the contenders. The current measurement then fails, and the cleanup stops PostgreSQL. */
export function interrupt () {
  interrupted = true
  for (const child of children) child.kill('SIGKILL')
}

/** Counts the sockets that listen on the port. Each process that shares the port has a socket. */
function countListeners (port: number): number {
  const sockets = readFileSync('/proc/net/tcp', 'utf8') + readFileSync('/proc/net/tcp6', 'utf8')
  const hex = port.toString(16).toUpperCase().padStart(4, '0')
  return sockets.match(new RegExp(`:${hex} 0+:0000 0A`, 'g'))?.length ?? 0 // 0A is TCP_LISTEN.
}

const isReady = (url: string) => fetch(url).then(({ status }) => status < 500, () => false)

export async function start (contender: Contender, databaseUrl: string): Promise<Running> {
  if (interrupted) throw new Error('interrupted')
  const port = await freePort()
  const log = join(folder, `${contender.name}.log`)
  const output = openSync(log, 'w')
  const [file = '', ...args] = contender.command
  const { PATH, HOME } = process.env
  const processes = contender.processes ?? 1
  // If the start fails, the stack ends the processes.
  await using stack = new AsyncDisposableStack()
  const began = performance.now()
  const started = Array.from({ length: processes }, () => {
    const child = spawn(file, args, {
      env: { PATH, HOME, DATABASE_URL: databaseUrl, PORT: String(port), ...contender.env },
      stdio: ['ignore', output, output]
    })
    children.add(child)
    const ended = once(child, 'exit').finally(() => children.delete(child))
    stack.defer(async () => {
      child.kill('SIGKILL')
      await ended
    })
    return child
  })
  const url = `http://127.0.0.1:${port}`
  while (countListeners(port) < processes || !await isReady(url + contender.ready)) {
    const hasEnded = started.some(({ exitCode, signalCode }) => exitCode !== null || signalCode !== null)
    if (hasEnded) throw new Error(`${contender.title} ended: ${readFileSync(log, 'utf8')}`)
    await delay(10)
  }
  const startMs = performance.now() - began
  const running = stack.move()
  return {
    pids: started.map(({ pid }) => pid ?? 0),
    url,
    startMs,
    [Symbol.asyncDispose]: () => running.disposeAsync()
  }
}

export type Postgres = Awaited<ReturnType<typeof startPostgres>>

/**
 * Starts a temporary PostgreSQL server with default settings, so fsync is on. Only `max_connections` is
 * larger: all contenders together keep some 95 connections on two cores, and more on more cores.
 */
export async function startPostgres () {
  // When root runs the benchmark, the user postgres runs PostgreSQL and needs access to the folder.
  await chmod(folder, 0o755)
  const first = await startEmbedded(folder)
  await withClient(first.url, (client) => client.query('alter system set max_connections = 1000'))
  await first.close()
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

/** Runs the contenders while `work` measures them. Each contender needs a database of the same name. */
export async function alongside (
  postgres: Postgres,
  chosen: Contender[],
  work: (entries: Entry[]) => Promise<void>
) {
  await using stack = new AsyncDisposableStack()
  const entries = []
  for (const contender of chosen) {
    const { pids, url } = stack.use(await start(contender, postgres.url(contender.name)))
    const database = stack.adopt(new pg.Client(postgres.url(contender.name)), (client) => client.end())
    await database.connect()
    const { title, tokensFile } = contender
    entries.push({ title, pids, url, database, postgres: postgres.pid, tokensFile })
  }
  await work(entries)
}

/** Creates a database with the service's tables and all tokens. `username` maps a token's index to a user. */
export async function createDatabase (url: string, username = (token: number) => String(token)) {
  const name = new URL(url).pathname.slice(1)
  await withClient(new URL('/postgres', url).href, (client) => client.query(`create database ${name}`))
  await migrate(url)
  const hashes = tokens.map((token) => createHash('sha256').update(token).digest())
  const names = tokens.map((_, index) => username(index))
  await withClient(url, (client) => client.query(
    'insert into tokens (hash, username) select * from unnest($1::bytea[], $2::text[])', [hashes, names]))
}
