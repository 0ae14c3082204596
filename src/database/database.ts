// Runs single statements, each on the connection for its kind.
import { createConnector } from './connector.ts'
import { tickMs, unresponsiveTicks, type ConnectionOptions, type Row, type Statement } from './connection.ts'
import { ManagedConnection } from './managed-connection.ts'

export type { Row, Statement }

/**
 * Each statement is a transaction of its own. Every method rejects with DATABASE_UNAVAILABLE or
 * DATABASE_SLOW when the server can't be reached or gives up on the statement. An error that the
 * server reports about the statement itself is passed on. Callers bound how much is pending.
 */
export interface Database {
  /** Rows in the order of the statement. */
  read (statement: Statement, values?: unknown[]): Promise<Row[]>

  /** A read that may take long, on a connection that short reads don't use. */
  readLong (statement: Statement, values?: unknown[]): Promise<Row[]>

  /**
   * A read on a connection of its own that is sent again on a new connection when the first one is
   * unresponsive: for token look-ups, on which all requests depend.
   */
  readHedged (statement: Statement, values?: unknown[]): Promise<Row[]>

  /** Resolves after the commit. After DATABASE_UNAVAILABLE or DATABASE_SLOW the outcome is unknown. */
  write (statement: Statement, values?: unknown[]): Promise<Row[]>

  /** Adds a statement that requests execute to the readiness probe. The values must match no row. */
  addProbe (table: string, statement: Statement, values: readonly unknown[]): void

  /** Rejects unless the probes succeed and each kind of statement has a connection. */
  probe (): Promise<unknown>

  /** Whether Citus spreads the tables over several nodes; false until the first connection is open. */
  isDistributed (): boolean

  /** Statements that wait for a connection or a result, by kind. */
  pending (): Record<'read' | 'long_read' | 'token' | 'write', number>

  /** Reports what delays requests without failing one, at most ten times a second. */
  onWarning (listener: Listener): void

  /** Waits for the pending statements. */
  close (): Promise<void>
}

type Listener = (message: string, details: object) => void

// Pipelined statements on one connection cost half the processor time of statements on a pool, and one
// server process keeps up with one Node process: see docs/design/001-one-pipelined-connection.md.
// A commit delays what follows on its connection, so writes have connections of their own, and more
// than one for the time when a batch waits for a lock.
const writeConnections = 4

/** Past which a connection is replaced. A lag of the event loop is not the database's fault. */
const maxUnresponsiveMs = unresponsiveTicks * tickMs

export function openDatabase (options: ConnectionOptions): Database {
  const connect = createConnector(options)
  const reads = new ManagedConnection(connect)
  const longReads = new ManagedConnection(connect)
  const tokens = new ManagedConnection(connect)
  const writes = Array.from({ length: writeConnections }, () => new ManagedConnection(connect))
  const connections = [reads, longReads, tokens, ...writes]
  const probes: Probe[] = []
  const listeners = new Set<Listener>()
  const isDistributed = () => connections.some((connection) => connection.isDistributed())
  const healthCheck = startHealthCheck(connections, (message, details) => {
    for (const listener of listeners) listener(message, details)
  })

  return {
    read: (statement, values = []) => reads.run(statement, values),
    readLong: (statement, values = []) => longReads.run(statement, values),
    readHedged: (statement, values = []) => tokens.runHedged(statement, values),
    write: (statement, values = []) => leastBusy(writes).run(statement, values),
    addProbe: (table, { name, text }, values) => {
      // Metrics tell probes from the requests that execute the same prepared statement.
      probes.push({ table, statement: { name: 'probe', preparedAs: name, text }, values: [...values] })
    },
    isDistributed,
    async probe () {
      const next = [reads, longReads, tokens, leastBusy(writes)]
      // Even under load a connection for writes is idle.
      const idle = leastBusy([...writes, reads])
      await Promise.all([
        ...(isDistributed() ? probes.map(withoutNodes) : probes)
          .map(({ statement, values }) => idle.run(statement, values)),
        ...next.map((connection) => connection.opened())
      ])
    },
    pending: () => ({
      read: reads.pending(),
      long_read: longReads.pending(),
      token: tokens.pending(),
      write: writes.reduce((sum, connection) => sum + connection.pending(), 0)
    }),
    onWarning: (listener) => { listeners.add(listener) },
    async close () {
      clearInterval(healthCheck)
      await Promise.all(connections.map((connection) => connection.close()))
    }
  }
}

function startHealthCheck (connections: ManagedConnection[], warn: Listener): NodeJS.Timeout {
  let lastTick = performance.now()
  return setInterval(() => {
    const lagMs = Math.round(performance.now() - lastTick - tickMs)
    lastTick = performance.now()
    if (lagMs > maxUnresponsiveMs && connections.some((connection) => connection.pending() > 0)) {
      warn('event loop lag: results of the database were read late', { lagMs })
    }
    const replaced = connections.filter((connection) => connection.tick()).length
    if (replaced === 0) return
    warn(`the database was unresponsive for ${maxUnresponsiveMs} ms: replacing connections`, { replaced })
  }, tickMs).unref()
}

interface Probe { table: string, statement: Statement, values: unknown[] }

/** Citus plans this without asking a node, so that a lost node does not make the service unready. */
const withoutNodes = ({ table }: Probe): Probe =>
  ({ table, statement: { name: `probe-${table}`, text: `select from ${table} where false` }, values: [] })

const leastBusy = (connections: ManagedConnection[]) =>
  connections.reduce((best, one) => one.pending() < best.pending() ? one : best)
