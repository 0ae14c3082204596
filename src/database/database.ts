// Runs single statements. Each kind of statement has connections of its own.
import pg from 'pg'
import { Backoff } from './backoff.ts'
import { connectTimeoutMs } from './connection-string.ts'
import { Connections, PooledClient, type Row, type Statement } from './connections.ts'
import { GivenUpSessions } from './given-up-sessions.ts'
import { Servers, type SessionSettings } from './servers.ts'

export type { Row, Statement }

export interface DatabaseOptions {
  url: string
  /** 0 leaves the limit to the database role. */
  statementTimeoutMs: number
  /** PostgreSQL shows this name, unless the connection string has another one. */
  applicationName?: string
}

export type Database = ReturnType<typeof openDatabase>

/** How many batches of each batcher are in flight at most. Creates and deletes have a batcher each. */
export const maxInFlight = { lookUps: 2, lists: 2, pages: 2, writes: 2, retries: 4 }

// Look-ups leave two connections: one for the probe, one for recording uses of tokens.
const poolSizes = {
  token: maxInFlight.lookUps + 2,
  list: maxInFlight.lists,
  page: maxInFlight.pages,
  write: 2 * maxInFlight.writes,
  retry: 2 * maxInFlight.retries
}

/** One more connection asks for given-up sessions. docs/operating.md has this number. */
export const maxConnections = Object.values(poolSizes).reduce((sum, size) => sum + size) + 1

type Kind = keyof typeof poolSizes

/**
 * A batch that waits for a locked row fails after this time, and its items are sent alone. So a locked row
 * delays the other items only briefly.
 */
const settingsOf: Partial<Record<Kind, SessionSettings>> = { write: { lock_timeout: '250ms' } }

// Even on Citus, PostgreSQL runs this statement without contacting another node.
const probeOf = (table: string) =>
  ({ name: 'probe', preparedAs: `probe-${table}`, text: `select from ${table} where false` })

/** pg returns the texts of PostgreSQL unchanged. */
const types = { getTypeParser: () => (text: string) => text } as unknown as pg.CustomTypesConfig

/**
 * Each statement is a transaction of its own. Methods reject with pg's error if the statement is at fault,
 * otherwise with a 503. Batchers, not this module, limit the number of pending statements.
 */
export function openDatabase (
  { url, statementTimeoutMs, applicationName = 'plant-store' }: DatabaseOptions
) {
  const servers = new Servers(url)
  const options = { application_name: applicationName, statement_timeout: statementTimeoutMs, types }
  const pool = new pg.Pool({
    Client: class extends PooledClient {
      constructor () {
        super(servers.latest, connectTimeoutMs, options)
      }
    },
    max: maxConnections,
    idleTimeoutMillis: 0
    // `Connections` notices lost connections itself. An unhandled 'error' event would crash the process.
  }).on('error', () => {})
  const backoff = new Backoff()
  const givenUp = new GivenUpSessions(() => servers.connect(connectTimeoutMs, options))

  async function open (settings?: SessionSettings): Promise<PooledClient> {
    await servers.find()
    const client = await pool.connect() as unknown as PooledClient
    try {
      client.session = await servers.startSession(client, settings)
      client.ready()
      return client
    } catch (error) {
      client.release(true)
      throw error
    }
  }

  const kinds = Object.fromEntries(Object.entries(poolSizes).map(([kind, max]) => [kind, new Connections({
    max,
    open: () => open(settingsOf[kind as Kind]),
    resultTimeoutMs: (statementTimeoutMs || 5000) + 1000,
    givenUp,
    backoff,
    onLost: () => servers.forget()
  })])) as Record<Kind, Connections>
  const all = Object.values(kinds)
  const runOn = (kind: Kind) => (statement: Statement, values?: unknown[]) => kinds[kind].run(statement, values)

  return {
    /** Whether the server has Citus. True until the first connection is open. */
    isDistributed: () => servers.isDistributed,

    /** Call this when a result shows that the server has Citus by now. */
    noticeCitus: () => { servers.isDistributed = true },

    /** For short reads, which share statements. */
    read: runOn('list'),

    /** For reads that may take long. */
    readLong: runOn('page'),

    /** For token look-ups. */
    lookUp: runOn('token'),

    /** For background jobs. */
    writeAside: runOn('token'),

    /**
     * For batches. Fails after a short wait for a lock. Resolves after the commit. After DATABASE_UNAVAILABLE or
     * DATABASE_SLOW, the outcome is unknown.
     */
    writeBatch: runOn('write'),

    /** Like `writeBatch`, but waits for locks up to the time limit of a statement. */
    write: runOn('retry'),

    /** Rejects if no connection opens, or a table is missing. */
    async probe (tables: string[]): Promise<void> {
      for (const table of tables) await kinds.token.run(probeOf(table))
    },

    /** Returns how many statements wait for a connection or a result, by kind. */
    pending: () => Object.fromEntries(Object.entries(kinds).map(([kind, { pending }]) => [kind, pending])),

    /** Opens a connection of each kind, so that the first requests need not wait. Never rejects. */
    async open (): Promise<void> {
      await Promise.all(all.map((each) => each.openFirst()))
    },

    /** Waits for the statements in flight. */
    async close (): Promise<void> {
      await Promise.all(all.map((each) => each.close()))
      givenUp.clear()
      await pool.end()
    }
  }
}
