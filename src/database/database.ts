// Runs single statements. Reads, long reads, token look-ups and writes have separate connections.
import { createConnector } from './connector.ts'
import { checkMs, type ConnectionOptions, type Row, type Statement } from './connection.ts'
import { ManagedConnection } from './managed-connection.ts'

export type { Row, Statement }

export type Database = ReturnType<typeof openDatabase>

/** The tables with rows of users. Each has the key (owner, id) and the column created_at. */
export const ownedTables = ['plants']
export const tables = [...ownedTables, 'tokens']

// Even on Citus, PostgreSQL runs these statements without contacting another node.
const probes = tables.map((table) =>
  ({ name: 'probe', preparedAs: `probe-${table}`, text: `select from ${table} where false` }))

/**
 * Each statement is a transaction of its own. Methods reject with pg's error if the statement is at fault,
 * otherwise with a 503. Repositories, not this module, limit the number of pending statements.
 */
export function openDatabase (options: ConnectionOptions) {
  const { connect, isDistributed } = createConnector(options)
  // Each kind of read has one connection: pools take twice the processor time. Writes have several: a commit
  // or a lock delays later writes on its connection. See docs/design/001-one-pipelined-connection.md.
  const reads = new ManagedConnection(connect)
  const longReads = new ManagedConnection(connect)
  const tokens = new ManagedConnection(connect)
  const writes = Array.from({ length: 4 }, () => new ManagedConnection(connect))
  const connections = [reads, longReads, tokens, ...writes]
  const healthCheck = setInterval(() => {
    for (const connection of connections) connection.check()
  }, checkMs).unref()

  return {
    isDistributed,

    read: reads.run.bind(reads),

    /** For reads that may take long. Short reads use another connection. */
    readLong: longReads.run.bind(longReads),

    /** For token look-ups. If the connection is unresponsive, sends the read again on a new connection. */
    readHedged: tokens.runHedged.bind(tokens),

    /** Resolves after the commit. After DATABASE_UNAVAILABLE or DATABASE_SLOW, the commit is uncertain. */
    write: (statement: Statement, values?: unknown[]) => leastBusy(writes).run(statement, values),

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

    /** Rejects if a table is missing, or if a kind of statement gets no connection. */
    async probe (): Promise<void> {
      const idle = leastBusy([...writes, reads])
      await Promise.all([
        ...[reads, longReads, tokens, leastBusy(writes)].map((connection) => connection.opened()),
        ...probes.map((probe) => idle.run(probe))
      ])
    },

    /** Returns how many statements wait for a connection or a result, by kind. */
    pending: () => ({
      read: reads.pending(),
      long_read: longReads.pending(),
      token: tokens.pending(),
      write: writes.reduce((sum, connection) => sum + connection.pending(), 0)
    }),

    async close (): Promise<void> {
      clearInterval(healthCheck)
      await Promise.all(connections.map((connection) => connection.close()))
    }
  }
}

const leastBusy = (connections: ManagedConnection[]) =>
  connections.reduce((best, one) => one.pending() < best.pending() ? one : best)
