// Runs single statements. Reads, long reads, token look-ups and writes have separate connections.
import { checkMs, type Row, type Statement } from './connection.ts'
import { ConnectionSet } from './connection-set.ts'
import { createConnector, type ConnectionOptions } from './connector.ts'
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
  const create = (count: number) => Array.from({ length: count }, () => new ManagedConnection(connect))
  // Each kind of read has one connection: pools take twice the processor time. Writes have several: a commit
  // or a lock delays later writes on its connection. See docs/design/001-one-pipelined-connection.md.
  const kinds = { read: create(1), long_read: create(1), token: create(1), write: create(4) }
  const all = Object.values(kinds).flat()
  const set = new ConnectionSet(all)
  const healthCheck = setInterval(() => set.check(), checkMs).unref()

  return {
    isDistributed,

    read: (statement: Statement, values?: unknown[]) => set.run(kinds.read, statement, values),

    /** For reads that may take long. Short reads use another connection. */
    readLong: (statement: Statement, values?: unknown[]) => set.run(kinds.long_read, statement, values),

    /** For token look-ups. If the connection is unresponsive, sends the read again on a new connection. */
    readHedged: (statement: Statement, values?: unknown[]) =>
      set.runHedged(kinds.token, statement, values),

    /** Resolves after the commit. After DATABASE_UNAVAILABLE or DATABASE_SLOW, the commit is uncertain. */
    write: (statement: Statement, values?: unknown[]) => set.run(kinds.write, statement, values),

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

    /** Opens a connection of each kind if it can. Rejects if no connection opens, or a table is missing. */
    async probe (): Promise<void> {
      await Promise.all(Object.values(kinds).map(([first]) => first?.openedSoon()))
      await Promise.all(probes.map((probe) => set.run(all, probe)))
    },

    /** Returns how many statements wait for a connection or a result, by kind. */
    pending: () => Object.fromEntries(Object.entries(kinds).map(([kind, connections]) =>
      [kind, connections.reduce((sum, each) => sum + each.pending(), 0)])),

    async close (): Promise<void> {
      clearInterval(healthCheck)
      await set.close()
    },

    /** Ends all connections at once. Pending statements reject with `reason` as cause. */
    destroy (reason: Error): void {
      for (const connection of all) connection.destroy(reason)
    }
  }
}
