// Which statement goes to which connection.
import { overloaded } from '../errors.ts'
import { createMemoryBudget, type Room } from '../scheduling/memory-budget.ts'
import { createConnector } from './connector.ts'
import { unresponsiveTicks, tickMs, type ConnectionOptions, type Row, type Statement } from './connection.ts'
import { ManagedConnection } from './managed-connection.ts'
import { ConcurrencyLimiter, type Waiter } from '../scheduling/concurrency-limiter.ts'

export type { Row, Statement }

export interface ReadOptions extends Waiter {
  /** For what may take long or bring much: one at a time, as far as there is room, on its own connection. */
  isLong?: boolean
}

/**
 * Runs single statements, each its own transaction. Every method rejects with
 * DATABASE_UNAVAILABLE when the server can't be reached or gives up on the
 * statement, and all but `probe` with OVERLOADED past `maxWaiting`; what the
 * server says of the statement itself arrives as it is. What has to wait does
 * so in an order that is fair among owners.
 */
export interface Database {
  /** Rows in the order the statement gives them. */
  read (statement: Statement, values?: unknown[], options?: ReadOptions): Promise<Row[]>

  /** Resolves after the commit. Rejected as unavailable it may have happened all the same. */
  write (statement: Statement, values?: unknown[]): Promise<Row[]>

  /**
   * A read on a connection of its own, asked again on a new one when that is
   * silent: for what decides on many requests, refusals included. Who calls it bounds how many wait.
   */
  readHedged (statement: Statement, values?: unknown[]): Promise<Row[]>

  /** Rejects unless the server answers and has the tables, and what comes next would have a connection. */
  probe (): Promise<unknown>

  /** How many statements were sent and are not answered, or wait for their turn, by kind. */
  waiting (): Record<'read' | 'long_read' | 'token' | 'write', number>

  /** How many requests of a kind may wait before further ones are refused. */
  maxQueued: number

  /** What was read and has not gone out: long reads wait for it, and whoever else looks at it. */
  room: Room

  /** Tells of what keeps requests waiting and shows in no error of theirs, at most ten times a second. */
  onWarning (listener: Listener): void

  /** Waits for what is under way. */
  close (): Promise<void>
}

type Listener = (what: string, details: object) => void

export interface DatabaseOptions extends ConnectionOptions {
  /** How many requests of a kind may wait before further ones are refused. */
  maxQueued: number
}

// A statement sent without waiting for the one before costs half the cycles of
// one on a pooled connection of its own: one write and one read of the socket
// for many, no idle connections to manage. One server process keeps up with all
// that one process of Node can ask of it, and doesn't compete with a second one:
// with 64 callers listing 20 plants on two cores, two and four connections came
// to 0.86 times the requests per second, and the 99th percentile of their
// latency to twice and to five times that of one. Token look-ups have another:
// behind lists that wait a caller would wait, too, perhaps only to be refused.
// So have pages of long lists, one at a time for all of them.
//
// A commit holds up what follows it on its connection, so writes have their
// own. Batches use four, of small and of large creates and deletes.
const writeConnections = 4

/** Enough for pipelining, and answered within some 10 ms: so long others wait, whatever one owner asks. */
const sentAtOnce = 100

/** What was read for one owner's lists and has not gone out. */
const mostReadBytes = 32 * 1024 * 1024

/** Past which a connection is closed. An event loop that lags so long was waited for, not the database. */
const mostSilenceMs = unresponsiveTicks * tickMs

export function openDatabase (options: DatabaseOptions): Database {
  const { maxQueued } = options
  const connect = createConnector(options)
  const reads = new ManagedConnection(connect)
  const longReads = new ManagedConnection(connect)
  const lookUps = new ManagedConnection(connect)
  const writes = Array.from({ length: writeConnections }, () => new ManagedConnection(connect))
  const lanes = [reads, longReads, lookUps, ...writes]
  const listeners = new Set<Listener>()

  const maxInFlight = Math.min(sentAtOnce, maxQueued)
  const room = createMemoryBudget(mostReadBytes)
  const readTurns = new ConcurrencyLimiter(reads, { maxInFlight, maxQueued })
  const longReadTurns = new ConcurrencyLimiter(longReads, {
    maxInFlight: 1, maxQueued, canRun: room.hasCapacity, yieldsBetween: true
  })
  const turns = [readTurns, longReadTurns]

  const clock = startHealthCheck(lanes, turns, listeners)

  return {
    read (statement, values = [], { isLong = false, ...waiter } = {}) {
      return isLong
        ? longReadTurns.run(() => longReads.run(statement, values), waiter)
        : readTurns.run(() => reads.run(statement, values), waiter)
    },
    readHedged: (statement, values = []) => lookUps.runHedged(statement, values),
    write (statement, values = []) {
      if (waitingFor(writes) >= maxQueued) return Promise.reject(overloaded)
      return leastBusy(writes).run(statement, values)
    },
    maxQueued,
    room,
    waiting: () => ({
      read: readTurns.waiting(),
      long_read: longReadTurns.waiting(),
      token: lookUps.waiting(),
      write: waitingFor(writes)
    }),
    async probe () {
      const next = [reads, longReads, lookUps, leastBusy(writes)]
      // Under the heaviest load there is a connection for writes that has nothing to do.
      const lane = leastBusy([...writes, reads])
      await Promise.all([...probes.map((probe) => lane.run(probe, [])), ...next.map((lane) => lane.opened())])
    },
    onWarning (listener) { listeners.add(listener) },
    async close () {
      clearInterval(clock)
      await Promise.all(lanes.map((lane) => lane.close()))
    }
  }
}

function startHealthCheck (
  lanes: ManagedConnection[], turns: ConcurrencyLimiter[], listeners: Set<Listener>
): NodeJS.Timeout {
  const tell: Listener = (what, details) => { for (const listener of listeners) listener(what, details) }
  let ticked = performance.now()
  return setInterval(() => {
    const lagMs = Math.round(performance.now() - ticked - tickMs)
    const isLagging = lagMs > mostSilenceMs && lanes.some((lane) => lane.waiting() > 0)
    ticked = performance.now()
    const silent = lanes.filter((lane) => lane.tick()).length
    for (const turn of turns) turn.tick()
    if (isLagging) {
      tell('the event loop lagged: the answers of the database waited for this process', { lagMs })
    }
    if (silent > 0) {
      const what = `the database was silent for ${mostSilenceMs / 1000} s`
      tell(`${what}: its connections are closed and others opened`, { silent })
    }
  }, tickMs).unref()
}

// Apart, and each of a row that nobody has: spread over several servers the tables can't be joined.
const probes = [
  { name: 'probe-plants', text: "select from plants where owner = ''" },
  { name: 'probe-tokens', text: "select from tokens where hash = ''" }
]

const waitingFor = (lanes: ManagedConnection[]) => lanes.reduce((sum, lane) => sum + lane.waiting(), 0)

const leastBusy = (lanes: ManagedConnection[]) =>
  lanes.reduce((best, lane) => lane.waiting() < best.waiting() ? lane : best)
