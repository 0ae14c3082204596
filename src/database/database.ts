// Runs single statements. Reads, long reads, token look-ups and writes have separate connections.
import type { Row, Statement } from './connection.ts'
import { ConnectionSet } from './connection-set.ts'
import { createConnector, type ConnectionOptions } from './connector.ts'
import { ManagedConnection } from './managed-connection.ts'

export type { Row, Statement }

export type Database = ReturnType<typeof openDatabase>

// Even on Citus, PostgreSQL runs this statement without contacting another node.
const probeOf = (table: string) =>
  ({ name: 'probe', preparedAs: `probe-${table}`, text: `select from ${table} where false` })

/**
 * Each statement is a transaction of its own. Methods reject with pg's error if the statement is at fault,
 * otherwise with a 503. Batchers, not this module, limit the number of pending statements.
 */
export function openDatabase (options: ConnectionOptions) {
  const { connect, isDistributed } = createConnector(options)
  const create = (count: number) => Array.from({ length: count }, () => new ManagedConnection(connect))
  // Each kind of read has one connection: pools take twice the processor time. Writes have several: a commit
  // or a lock delays later writes on its connection. See docs/design/001-one-pipelined-connection.md.
  const set = new ConnectionSet({ read: create(1), long_read: create(1), write: create(4), token: create(1) })

  return {
    isDistributed,

    read: (statement: Statement, values?: unknown[]) => set.run('read', statement, values),

    /** For reads that may take long. Short reads use another connection. */
    readLong: (statement: Statement, values?: unknown[]) => set.run('long_read', statement, values),

    /** For token look-ups. If the connection is unresponsive, sends the read again on another connection. */
    readHedged: (statement: Statement, values?: unknown[]) => set.runHedged('token', statement, values),

    /** Resolves after the commit. After DATABASE_UNAVAILABLE or DATABASE_SLOW, the commit is uncertain. */
    write: (statement: Statement, values?: unknown[]) => set.run('write', statement, values),

    /** For background jobs. Opens a connection for the statement, which so can delay no request. */
    async writeAside (statement: Statement, values: unknown[]): Promise<void> {
      const connection = await connect()
      try {
        await connection.run(statement, values)
      } finally {
        connection.close()
        await connection.closed
      }
    },

    /** Rejects if no connection opens, or a table is missing. */
    async probe (tables: string[]): Promise<void> {
      // A slow list must not delay the probe.
      await Promise.all(tables.map((table) => set.runHedged('token', probeOf(table))))
    },

    /** Returns how many statements wait for a connection or a result, by kind. */
    pending: () => set.pending,

    /** Opens a connection of each kind, so that the first requests need not wait. Never rejects. */
    open: () => set.open(),

    close: () => set.close(),

    /** Ends all connections at once. Pending statements reject with `reason` as cause. */
    destroy: (reason: Error) => set.destroy(reason)
  }
}
