import { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { ApiError, overloaded } from '../errors.ts'

/** A row as the server wrote it: every value as text, in the order of the columns. */
export type Row = Array<string | null>

/** Named, so that each connection plans it once. */
export interface Statement {
  name: string
  text: string
}

export interface ReadOptions {
  /** For a request that is being answered already. It is not subject to `maxWaiting`: the answer would break off. */
  isUnderWay?: boolean
}

export interface DatabaseOptions {
  url: string
  /** 0: the role's own limit. */
  statementTimeoutMs: number
  /** How many statements may be under way before further ones are refused. */
  maxWaiting: number
}

/**
 * Runs single statements, each its own transaction. Rejects with
 * DATABASE_UNAVAILABLE when the server can't be reached or gives up on the
 * statement, and with OVERLOADED past `maxWaiting`; what the server says of
 * the statement itself arrives as it is. When a write is rejected as
 * unavailable it may have happened all the same.
 */
export interface Database {
  read (statement: Statement, values?: unknown[], options?: ReadOptions): Promise<Row[]>
  write (statement: Statement, values?: unknown[]): Promise<Row[]>
  /** A read on a connection of its own, asked again on a new one when that is silent: for what decides on many requests, refusals included. */
  lookUp (statement: Statement, values?: unknown[]): Promise<Row[]>
  /** Rejects unless the server answers and has the tables; not subject to `maxWaiting`. */
  probe (): Promise<unknown>
  /** Waits for what is under way. */
  close (): Promise<void>
}

// A statement sent without waiting for the one before costs half the cycles of
// one on a pooled connection of its own: one write and one read of the socket
// for many, no idle connections to manage. One server process keeps up with all
// that one process of Node can ask of it, and doesn't compete with a second one:
// with 64 callers listing 20 plants on two cores, two and four connections came
// to 0.86 times the requests per second, and the 99th percentile of their
// latency to twice and to five times that of one. Token look-ups have another:
// behind lists that wait a caller would wait, too, perhaps only to be refused.
//
// A commit holds up what follows it on its connection, so writes have their
// own. Batches use two; the others only serve WRITE_BATCH=1.
const writeConnections = 4
/** How many given up connections of a place may still be open. Statements that hang for long shall not use up the server's connections. */
const mostRetired = 2

const connectTimeoutMs = 3000
/** While a connection attempt hangs another one is made this often, so that the way back is found soon. */
const connectRetryMs = 500
/** After a refused attempt, how long requests are answered without trying again. */
const connectPauseMs = 100
/** A connection silent for this long with work to do gets no more of it: a new one is opened. */
export const stallMs = 1000
/** After this long a look-up is made again; by then its connection counts as silent. */
const lookUpRetryMs = stallMs + 100

export function openDatabase (options: DatabaseOptions): Database {
  const reads = openLane(options)
  const writes = Array.from({ length: writeConnections }, () => openLane(options))
  const lookUps = openLane(options)
  const run = (...lanes: Lane[]) => (statement: Statement, values: unknown[] = [], { isUnderWay = false } = {}) => {
    const waiting = lanes.reduce((sum, lane) => sum + lane.waiting(), 0)
    if (waiting >= options.maxWaiting && !isUnderWay) return Promise.reject(overloaded)
    return leastBusy(lanes).run(statement, values)
  }
  const lookUp = run(lookUps)
  return {
    read: run(reads),
    write: run(...writes),
    async lookUp (statement, values) {
      const answer = lookUp(statement, values)
      const isLate = await Promise.race([answer.then(() => false), delay(lookUpRetryMs, true, { ref: false })])
      if (!isLate) return answer
      return Promise.any([answer, lookUp(statement, values)]).catch(({ errors: [error] }: AggregateError) => { throw error })
    },
    // Under the heaviest load there is a connection for writes that has nothing to do.
    probe: () => leastBusy([...writes, reads]).run(probe, []),
    close: async () => { await Promise.all([reads, ...writes, lookUps].map((lane) => lane.close())) }
  }
}

const probe = { name: 'probe', text: 'select from plants, tokens limit 0' }

type Lane = ReturnType<typeof openLane>

const leastBusy = (lanes: Lane[]) => lanes.reduce((best, lane) => lane.waiting() < best.waiting() ? lane : best)

/** A place for one connection: opened when first needed, replaced when lost or stalled. */
function openLane (options: DatabaseOptions) {
  let current: Connection | undefined
  let opening: Promise<Connection> | undefined
  let pause: { until: number, error: unknown } = { until: -Infinity, error: undefined }
  let retired = 0

  function open (): Promise<Connection> {
    if (performance.now() < pause.until) return Promise.reject(pause.error)
    opening ??= firstToConnect(options).then(
      (connection) => {
        connection.client.once('end', () => { if (current === connection) current = undefined })
        current = connection
        return connection
      },
      (error) => {
        pause = { until: performance.now() + connectPauseMs, error }
        throw error
      }
    ).finally(() => { opening = undefined })
    return opening
  }

  let queued = 0
  async function opened (): Promise<Connection> {
    queued++
    try {
      return await open()
    } finally {
      queued--
    }
  }

  return {
    /**
     * How much is under way. A connection that has stalled is given up, and
     * what it has doesn't count any more: it must not keep out those who come
     * when the database is back.
     */
    waiting (): number {
      if (current?.isEnding() || (current?.isStalled() && retired < mostRetired)) {
        retired++
        current.client.once('end', () => { retired-- })
        current.retire()
        current = undefined
      }
      return queued + (current?.waiting() ?? 0)
    },

    async run (statement: Statement, values: unknown[]): Promise<Row[]> {
      try {
        return await (current ?? await opened()).run(statement, values)
      } catch (error) {
        throw toApiError(error)
      }
    },

    async close (): Promise<void> {
      await Promise.allSettled([opening])
      if (current === undefined) return
      const { client } = current
      // Not `once`, which would reject when the connection breaks instead.
      const ended = new Promise((resolve) => client.once('end', resolve))
      current.retire()
      await ended
    }
  }
}

type Connection = ReturnType<typeof createConnection>

/** The first of several attempts to succeed; the others are dropped. */
function firstToConnect (options: DatabaseOptions): Promise<Connection> {
  return new Promise((resolve, reject) => {
    const attempts = new Set<Connection>()
    const attempt = async () => {
      let connection
      try {
        // Throws when a certificate that the URL names can't be read.
        connection = createConnection(options)
        attempts.add(connection)
        await connection.client.connect()
        attempts.delete(connection)
        finish()
        resolve(connection)
      } catch (error) {
        // The client leaves it open when it has no password to give.
        connection?.socket.destroy()
        attempts.delete(connection as Connection)
        if (attempts.size > 0) return
        finish()
        reject(error)
      }
    }
    const retry = setInterval(attempt, connectRetryMs)
    const deadline = setTimeout(() => {
      finish()
      reject(new Error(`no connection within ${connectTimeoutMs} ms`))
    }, connectTimeoutMs)
    const finish = () => {
      clearInterval(retry)
      clearTimeout(deadline)
      for (const { socket } of attempts) socket.destroy()
    }
    attempt()
  })
}

function createConnection ({ url, statementTimeoutMs }: DatabaseOptions) {
  const socket = new Socket()
  const client = new pg.Client({
    connectionString: url,
    stream: () => socket,
    pipeline: true,
    keepAlive: true,
    // Then every second: a peer that vanished while nothing was asked of it is found out before something is.
    keepAliveInitialDelayMillis: 10_000,
    application_name: 'plant-store',
    statement_timeout: statementTimeoutMs,
    // For a server that no longer answers at all: it ends the connection and
    // with it everything sent on it, so the server's own limit must come first.
    query_timeout: (statementTimeoutMs === 0 ? 5000 : statementTimeoutMs) + 1000
  })
  // What the columns are called and what types they have need not be asked
  // with every statement: values are taken for the text they arrive as.
  Object.assign(client.connection, { describe: () => {} })
  // Without a listener a lost connection would end the process. Whatever was
  // under way is told by its own callback. The client refuses all further
  // statements but leaves it to the server to close.
  client.on('error', () => socket.destroy())
  let running = 0
  let lastAnswer = 0
  let isCorked = false
  let isRetired = false
  let isEnding = false

  function leave (): void {
    client.end()
    // A server that hangs doesn't say goodbye.
    setTimeout(() => socket.destroy(), stallMs).unref()
  }

  return {
    client,
    socket,

    waiting: () => running,

    /** Whether it has had work for a while and answered none of it. */
    isStalled: () => running > 0 && performance.now() - lastAnswer > stallMs,

    /** Whether it was told that it is at its end. */
    isEnding: () => isEnding,

    /** Ends the connection once everything sent on it is answered. */
    retire (): void {
      isRetired = true
      if (running === 0) leave()
    },

    run (statement: Statement, values: unknown[]): Promise<Row[]> {
      if (running++ === 0) lastAnswer = performance.now()
      // One write to the socket for all statements of this turn of the event loop.
      if (!isCorked) {
        isCorked = true
        socket.cork()
        setImmediate(() => {
          isCorked = false
          socket.uncork()
        })
      }
      return new Promise((resolve, reject) => {
        const query = new TextQuery(statement, values, (error?: Error) => {
          lastAnswer = performance.now()
          if (--running === 0 && isRetired) leave()
          if (endsConnection(error)) isEnding = true
          if (error) reject(error)
          else resolve(query.received)
        })
        client.query(query)
      })
    }
  }
}

/** Hands on the text of each value: no row objects, no type conversion, nothing looked up by column name. */
class TextQuery extends pg.Query {
  declare name: string

  constructor ({ name, text }: Statement, values: unknown[], callback: (error?: Error) => void) {
    // With the name apart there is no object of options for pg to copy.
    super(text, values, callback)
    this.name = name
  }

  // Not `rows`: that is an option of the class it extends.
  received: Row[] = []
  handleDataRow ({ fields }: { fields: Row }): void { this.received.push(fields) }
  handleCommandComplete (): void {}
}

// SQLSTATE classes and codes that tell of the server's state and not of the statement.
const unavailable = new RegExp('^(' + [
  '08', // connection exceptions, a pooler's refusals among them
  '25006', // a standby
  '28', '3D000', // no access to the server or the database
  '40', // deadlock or serialization failure: rolled back, may be tried again
  '53', '57', '58', // out of resources, cancelled or shutting down, system error
  '26000', '42P05', '42P01' // tables not there (yet), and what comes of that for statements sent meanwhile
].join('|') + ')')

// A server that ends a connection says so before it closes it.
const endsConnection = (error?: Error) => error instanceof pg.DatabaseError && /^57P/.test(error.code as string)

const isOfStatement = (error: unknown) => error instanceof pg.DatabaseError && !unavailable.test(error.code as string)

function toApiError (error: unknown): unknown {
  return isOfStatement(error) || error instanceof ApiError ? error : new ApiError('DATABASE_UNAVAILABLE', { cause: error })
}

/** Whether an error of `write` says that the statement, and not the server, is at fault or in somebody's way: for sure nothing was written. */
export function wasTurnedDown (error: unknown): boolean {
  const reason = error instanceof ApiError ? error.cause : error
  return isOfStatement(reason) || (reason instanceof pg.DatabaseError && /^(40001|40P01|57014)$/.test(reason.code as string))
}
