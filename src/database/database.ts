// Runs single statements. Each kind of statement has connections of its own.
import pg from 'pg'
import { Backoff } from './backoff.ts'
import { connectTimeoutMs } from './client.ts'
import { Connections, type Row, type Statement } from './connections.ts'
import { GivenUpSessions } from './given-up-sessions.ts'
import { Servers, type SessionSettings } from './servers.ts'

export type { Row, Statement }

export interface DatabaseOptions {
  url: string
  /** 0 leaves the limit to the database role, at most 6 s. */
  statementTimeoutMs: number
  /** PostgreSQL shows this name, unless the connection string has another one. */
  applicationName?: string
  /** How long to wait for a connection. The default is for requests. */
  maxConnectMs?: number
}

export type Database = ReturnType<typeof openDatabase>

/** How many statements of each batcher are in flight at most. Creates and deletes have a batcher each. */
export const maxInFlight = { lookUps: 2, shortLists: 2, pages: 2, writeBatches: 2, writesAlone: 4 }

/** Each kind of statement has a pool of connections. Comparisons of creates use the pool of short lists. */
const poolSizes = {
  // Two more than look-ups: one for the probe, one for recording uses of tokens.
  token: maxInFlight.lookUps + 2,
  read: maxInFlight.shortLists,
  long_read: maxInFlight.pages,
  write_batch: 2 * maxInFlight.writeBatches,
  write: 2 * maxInFlight.writesAlone
}

type Kind = keyof typeof poolSizes

/** One more connection asks for given-up sessions. docs/operating.md has this number. */
export const maxConnections = Object.values(poolSizes).reduce((sum, size) => sum + size) + 1

/**
 * A batch that waits for a locked row fails after this time, and its items are sent alone. So a locked row
 * delays the other items only briefly.
 */
const settingsOf: Partial<Record<Kind, SessionSettings>> = { write_batch: { lock_timeout: '250ms' } }

// Even on Citus, PostgreSQL runs this statement without contacting another node.
const probeOf = (table: string) =>
  ({ name: 'probe', preparedAs: `probe-${table}`, text: `select from ${table} where false` })

/** pg returns the texts of PostgreSQL unchanged. */
const types = { getTypeParser: () => (text: string) => text } as unknown as pg.CustomTypesConfig

/**
 * Each statement is a transaction of its own. Methods reject with pg's error if the statement is at fault,
 * otherwise with a 503. Batchers, not this module, limit the number of pending statements.
 */
export function openDatabase ({
  url, statementTimeoutMs, applicationName = 'plant-store', maxConnectMs = connectTimeoutMs
}: DatabaseOptions) {
  const servers = new Servers(url)
  const client = { application_name: applicationName, statement_timeout: statementTimeoutMs, types }
  const backoff = new Backoff()
  const givenUp = new GivenUpSessions(() =>
    servers.connect(maxConnectMs, { ...client, query_timeout: maxConnectMs }))
  const maxResultMs = (statementTimeoutMs || 5000) + 1000
  const shared = { servers, backoff, givenUp, client, maxConnectMs, maxResultMs }
  const kinds = Object.fromEntries(Object.entries(poolSizes).map(([kind, max]) =>
    [kind, new Connections({ ...shared, max, settings: settingsOf[kind as Kind] })]
  )) as Record<Kind, Connections>
  const all = Object.values(kinds)
  const runOn = (kind: Kind) => (statement: Statement, values?: unknown[]) =>
    kinds[kind].run(statement, values)

  return {
    /** Whether the server has Citus. Until the first connection is open, true: Citus takes no batches. */
    isDistributed: () => servers.isDistributed,

    /** Call this when a result shows that the server has Citus by now. */
    noticeCitus: () => { servers.isDistributed = true },

    /** For token look-ups. */
    lookUp: runOn('token'),

    /** For background jobs. */
    writeAside: runOn('token'),

    /** For short reads, which share statements. */
    read: runOn('read'),

    /** For reads that may take long. */
    readLong: runOn('long_read'),

    /**
     * For batches. Fails after a short wait for a lock. Resolves after the commit. After
     * DATABASE_UNAVAILABLE or DATABASE_SLOW, the outcome is unknown.
     */
    writeBatch: runOn('write_batch'),

    /** Like `writeBatch`, but waits for locks up to the time limit of a statement. */
    write: runOn('write'),

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

    /** Waits for the statements in flight. May be called twice. */
    async close (): Promise<void> {
      givenUp.close()
      await Promise.all(all.map((each) => each.close()))
    }
  }
}
