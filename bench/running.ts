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
import { createToken } from '../src/access/token-format.ts'
import { migrate } from '../src/database/migrate.ts'
import { startEmbedded } from '../dev/embedded-postgres.ts'
import { freePort } from '../test/support/free-port.ts'

export interface Contender {
  name: string
  title: string
  command: string[]
  /** The benchmark requests this path until the status is below 500. Then the contender is ready. */
  ready: string
  env?: Record<string, string>
  /** The file with the tokens that the load sends. By default, the tokens are the service's own, not JWTs. */
  tokensFile?: string
}

interface Running {
  pid: number
  url: string
  startMs: number
  [Symbol.asyncDispose]: () => Promise<void>
}

/** A program to measure (a running contender or pgbench), and the program's database. */
export interface Entry {
  title: string
  url: string
  database: pg.Client
  /** The process id of the contender. Undefined for pgbench. */
  pid?: number
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

const isReady = (url: string) => fetch(url).then(({ status }) => status < 500, () => false)

export async function start (contender: Contender, databaseUrl: string): Promise<Running> {
  if (interrupted) throw new Error('interrupted')
  const port = await freePort()
  const log = join(folder, `${contender.name}.log`)
  const output = openSync(log, 'w')
  const [file = '', ...args] = contender.command
  const { PATH, HOME } = process.env
  const began = performance.now()
  const child = spawn(file, args, {
    env: { PATH, HOME, DATABASE_URL: databaseUrl, PORT: String(port), ...contender.env },
    stdio: ['ignore', output, output]
  })
  children.add(child)
  const ended = once(child, 'exit').finally(() => children.delete(child))
  const url = `http://127.0.0.1:${port}`
  while (!await isReady(url + contender.ready)) {
    const hasEnded = child.exitCode !== null || child.signalCode !== null
    if (hasEnded) throw new Error(`${contender.title} ended: ${readFileSync(log, 'utf8')}`)
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

export type Postgres = Awaited<ReturnType<typeof startPostgres>>

/** Starts a temporary PostgreSQL server with default settings, so fsync is on. */
export async function startPostgres () {
  // When root runs the benchmark, the user postgres runs PostgreSQL and needs access to the folder.
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

/** Runs the contenders while `work` measures them. Each contender needs a database of the same name. */
export async function alongside (
  postgres: Postgres,
  chosen: Contender[],
  work: (entries: Array<Entry & { pid: number }>) => Promise<void>
) {
  await using stack = new AsyncDisposableStack()
  const entries = []
  for (const contender of chosen) {
    const { pid, url } = stack.use(await start(contender, postgres.url(contender.name)))
    const database = stack.adopt(new pg.Client(postgres.url(contender.name)), (client) => client.end())
    await database.connect()
    const { title, tokensFile } = contender
    entries.push({ title, pid, url, database, postgres: postgres.pid, tokensFile })
  }
  await work(entries)
}

/** Creates a database with the service's tables and all tokens. `username` maps a token's index to a user. */
export async function createDatabase (url: string, username = (token: number) => String(token)) {
  const name = new URL(url).pathname.slice(1)
  await withClient(new URL('/postgres', url).href, (client) => client.query(`create database ${name}`))
  await migrate(url, 'up')
  const hashes = tokens.map((token) => createHash('sha256').update(token).digest())
  const names = tokens.map((_, index) => username(index))
  await withClient(url, (client) => client.query(
    'insert into tokens (hash, username) select * from unnest($1::bytea[], $2::text[])', [hashes, names]))
}
