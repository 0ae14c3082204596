// Starts contenders, and one PostgreSQL server with a database for each contender.
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { chmodSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { createToken } from '../src/access/tokens.ts'
import { migrate } from '../src/database/migrate.ts'
import { startEmbedded } from '../dev/embedded-postgres.ts'
import { freePort } from '../test/support/free-port.ts'

export interface Contender {
  /** Also names the contender's database. */
  name: string
  title: string
  command: string[]
  /** The benchmark requests this path until the status is below 500. Then the contender is ready. */
  ready: string
  env?: Record<string, string>
}

export interface Running extends AsyncDisposable {
  title: string
  pid: number
  postgresPid: number
  url: string
  /** A connection to the contender's database. */
  database: pg.Client
}

export type Postgres = Awaited<ReturnType<typeof startPostgres>>

export const folder = mkdtempSync(join(tmpdir(), 'plant-store-bench-'))
process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
const tokens = Array.from({ length: 2000 }, () => createToken())
/** The token in line n, counted from 0, belongs to the user n. */
export const tokensFile = join(folder, 'tokens')
writeFileSync(tokensFile, tokens.join('\n'))

/** Aborts after SIGINT or SIGTERM. The current or next load fails, and the benchmark stops its programs. */
const interruption = new AbortController()
export const interrupted = interruption.signal
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => interruption.abort())

export async function withClient<T> (url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

/** Starts a temporary PostgreSQL server with default settings, so fsync is on. */
export async function startPostgres () {
  // When root runs the benchmark, the user postgres runs PostgreSQL and needs access to the folder.
  chmodSync(folder, 0o755)
  const server = await startEmbedded(folder)
  const pid = Number(readFileSync(join(folder, 'postgresql/postmaster.pid'), 'utf8').split('\n')[0])
  const url = (database: string) => new URL(database, server.url).href
  return {
    url,
    start: (contender: Contender) => start(contender, url(contender.name), pid),
    [Symbol.asyncDispose]: () => server.close()
  }
}

/** Creates a database with the service's tables and all tokens. */
export async function createDatabase (url: string) {
  const name = new URL(url).pathname.slice(1)
  await withClient(new URL('/postgres', url).href, (client) => client.query(`create database ${name}`))
  await migrate(url)
  const hashes = tokens.map((token) => createHash('sha256').update(token).digest())
  await withClient(url, (client) => client.query(
    'insert into tokens (hash, username) select * from unnest($1::bytea[], $2::text[])',
    [hashes, tokens.map((_, user) => String(user))]))
}

/** Creates the contender's database, and starts the contender. */
async function start (contender: Contender, databaseUrl: string, postgresPid: number): Promise<Running> {
  await createDatabase(databaseUrl)
  const { title, ready, env, command: [file = '', ...args] } = contender
  const [port, log] = [await freePort(), join(folder, `${contender.name}.log`)]
  const output = openSync(log, 'w')
  const { PATH, HOME } = process.env
  // If the start fails, the stack ends the process.
  await using stack = new AsyncDisposableStack()
  const child = spawn(file, args, {
    env: { PATH, HOME, DATABASE_URL: databaseUrl, PORT: String(port), ...env },
    stdio: ['ignore', output, output]
  })
  const ended = once(child, 'exit')
  stack.defer(async () => {
    child.kill('SIGKILL')
    await ended
  })
  const url = `http://127.0.0.1:${port}`
  while (!await fetch(url + ready).then(({ status }) => status < 500, () => false)) {
    interrupted.throwIfAborted()
    if (child.exitCode !== null || child.signalCode !== null) {
      throw new Error(`${title} ended: ${readFileSync(log, 'utf8')}`)
    }
    await delay(10)
  }
  const database = stack.adopt(new pg.Client(databaseUrl), (client) => client.end())
  await database.connect()
  const started = stack.move()
  return {
    title,
    pid: child.pid ?? 0,
    postgresPid,
    url,
    database,
    [Symbol.asyncDispose]: () => started.disposeAsync()
  }
}
