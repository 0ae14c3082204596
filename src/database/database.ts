// Runs single statements. Reads, long reads, token look-ups and writes have separate connections.
import { createConnector } from './connector.ts'
import { checkMs, maxChecks, type ConnectionOptions, type Row, type Statement } from './connection.ts'
import { ManagedConnection } from './managed-connection.ts'

export type { Row, Statement }

export type Database = ReturnType<typeof openDatabase>

type WarningListener = (message: string, details: object) => void

/** The tables with rows of users. Each has the key (owner, id) and the column created_at. */
export const ownedTables = ['plants']
export const tables = [...ownedTables, 'tokens']

// Even on Citus, PostgreSQL runs these statements without contacting another node.
const probes = tables.map((table) =>
  ({ name: 'probe', preparedAs: `probe-${table}`, text: `select from ${table} where false` }))

// Each kind of read has one connection: a pool takes twice the processor time. Writes have several: a commit
// or a lock delays later statements on its connection. See docs/design/001-one-pipelined-connection.md.
const writeConnections = 4

const maxUnresponsiveMs = maxChecks * checkMs

/**
 * Each statement is a transaction of its own. Methods reject with pg's error if the statement is at fault,
 * otherwise with a 503. Repositories, not this module, limit the number of pending statements.
 */
export function openDatabase (options: ConnectionOptions) {
  const connect = createConnector(options)
  const reads = new ManagedConnection(connect)
  const longReads = new ManagedConnection(connect)
  const tokens = new ManagedConnection(connect)
  const writes = Array.from({ length: writeConnections }, () => new ManagedConnection(connect))
  const connections = [reads, longReads, tokens, ...writes]
  let warn: WarningListener = console.error
  const healthCheck = setInterval(() => {
    const replaced = connections.filter((connection) => connection.check()).length
    if (replaced === 0) return
    warn(`the database was unresponsive for ${maxUnresponsiveMs} ms: replacing connections`, { replaced })
  }, checkMs).unref()

  return {
    read: (statement: Statement, values: unknown[] = []) => reads.run(statement, values),

    /** For reads that may take long. Short reads use another connection. */
    readLong: (statement: Statement, values: unknown[]) => longReads.run(statement, values),

    /** For token look-ups. If the connection is unresponsive, sends the read again on a new connection. */
    readHedged: (statement: Statement, values: unknown[] = []) => tokens.runHedged(statement, values),

    /** Resolves after the commit. After DATABASE_UNAVAILABLE or DATABASE_SLOW, the commit is uncertain. */
    write: (statement: Statement, values: unknown[] = []) => leastBusy(writes).run(statement, values),

    /** Whether the server has Citus. True until the first connection is open. */
    isDistributed: () => connections.every((connection) => connection.isDistributed ?? true),

    /** Rejects if a table is missing, or if a kind of statement gets no connection. */
    async probe (): Promise<void> {
      const next = [reads, longReads, tokens, leastBusy(writes)]
      const idle = leastBusy([...writes, reads])
      await Promise.all([
        ...probes.map((probe) => idle.run(probe, [])),
        ...next.map((connection) => connection.opened())
      ])
    },

    /** Returns how many statements wait for a connection or a result, by kind. */
    pending: () => ({
      read: reads.pending(),
      long_read: longReads.pending(),
      token: tokens.pending(),
      write: writes.reduce((sum, connection) => sum + connection.pending(), 0)
    }),

    /** Sets the listener for warnings, which come at most ten times a second. */
    onWarning (listener: WarningListener): void {
      warn = listener
    },

    async close (): Promise<void> {
      clearInterval(healthCheck)
      await Promise.all(connections.map((connection) => connection.close()))
    }
  }
}

const leastBusy = (connections: ManagedConnection[]) =>
  connections.reduce((best, one) => one.pending() < best.pending() ? one : best)
