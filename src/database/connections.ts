// The connections for one kind of statement, in a pool of pg. A connection runs one statement at a time.
import pg from 'pg'
import { ApiError, errors } from '../errors.ts'
import { connectionEvents, requestContext, statementEvents } from '../telemetry-events.ts'
import type { Backoff } from './backoff.ts'
import { Client } from './client.ts'
import type { GivenUpSessions } from './given-up-sessions.ts'
import { isFatal, isReadOnly, isStalePlan, toConnectError, toDatabaseError } from './pg-errors.ts'
import type { Servers, SessionSettings } from './servers.ts'

/** A row as the server sends it: every value as text, in the order of the columns. */
export type Row = Array<string | null>

/** Each connection prepares the statement once, at the first use. */
export interface Statement {
  name: string
  /** The name of the prepared statement, `name` by default. Set this if several texts share one `name`. */
  preparedAs?: string
  text: string
}

interface Job extends Omit<PromiseWithResolvers<Row[]>, 'promise'> {
  statement: Statement
  values: unknown[]
  startedAt: number
  context: unknown
  /** How many connections had no valid plan for the statement. */
  stalePlans: number
}

export interface ConnectionsOptions {
  /** How many statements are in flight at most. */
  max: number
  servers: Servers
  /** The pause after a failed attempt to connect. All kinds of statements share it. */
  backoff: Backoff
  givenUp: GivenUpSessions
  client: pg.ClientConfig
  maxConnectMs: number
  /** After this time without a result, the connection is given up. STATEMENT_TIMEOUT is shorter, unless 0. */
  maxResultMs: number
  settings?: SessionSettings
}

type PooledClient = Client & pg.PoolClient

/** How often a connection to a read-only server is replaced at most. The server may accept writes again. */
const minReadOnlyMs = 1000

export class Connections {
  /** The number of statements that wait for a connection or a result. */
  pending = 0
  readonly #options: ConnectionsOptions
  readonly #pool: pg.Pool
  /** Given-up connections. Each keeps its place in the pool until the server has ended its session. */
  #heldPlaces = 0

  constructor (options: ConnectionsOptions) {
    const { max, servers, client, maxConnectMs, settings } = options
    this.#options = options
    this.#pool = new pg.Pool({
      max,
      idleTimeoutMillis: 0,
      // A statement may wait for a place in the pool as long as for a new connection.
      connectionTimeoutMillis: maxConnectMs,
      Client: class extends Client {
        constructor () {
          super(servers.latest, maxConnectMs, client)
        }
      },
      // pg awaits this function. Its type does not say so.
      onConnect: ((client: Client) => servers.startSession(client, settings)) as unknown as () => void
    })
    this.#pool.on('connect', () => {
      options.backoff.succeed()
      connectionEvents.publish({ event: 'opened' })
    })
    // An idle connection is lost. pg has removed it from the pool.
    this.#pool.on('error', () => this.#lose())
  }

  /** Rejects with pg's error if the statement is at fault, otherwise with a 503. */
  run (statement: Statement, values: unknown[] = []): Promise<Row[]> {
    const { promise, resolve, reject } = Promise.withResolvers<Row[]>()
    this.pending++
    const [startedAt, context] = [performance.now(), requestContext.getStore()]
    this.#start({ statement, values, resolve, reject, startedAt, context, stalePlans: 0 })
    return promise
  }

  #settle (job: Job, error: unknown, rows: Row[] = []): void {
    const { statement: { name }, startedAt, context, resolve, reject } = job
    this.pending--
    statementEvents.publish({ name, startedAt, error, requestContext: context })
    if (error === undefined) resolve(rows)
    else reject(toDatabaseError(error))
  }

  #start (job: Job): void {
    const { max, servers, backoff } = this.#options
    const { idleCount, totalCount } = this.#pool
    if (this.#heldPlaces === max) return this.#settle(job, slow('all earlier connections hang'))
    if (idleCount > 0 || totalCount === max) return this.#checkOut(job)
    if (backoff.error !== undefined) return this.#tryLater(job, backoff.error)
    servers.find().then(() => this.#checkOut(job), (error) => this.#failToOpen(job, error))
  }

  #checkOut (job: Job): void {
    this.#pool.connect((error, client) => {
      if (error === undefined) this.#send(job, client as PooledClient)
      // pg-pool has no code for this error.
      else if (/^timeout exceeded/.test(error.message)) this.#settle(job, slow('no free connection'))
      else this.#failToOpen(job, error)
    })
  }

  #failToOpen (job: Job, cause: Error): void {
    const error = toConnectError(cause)
    connectionEvents.publish({ event: 'failed', error: cause })
    this.#options.backoff.fail(error)
    this.#options.servers.forget()
    this.#tryLater(job, error)
  }

  /** While a connection is open, the server may only be full: starts the job again after the pause. */
  #tryLater (job: Job, error: unknown): void {
    const { backoff, maxConnectMs } = this.#options
    const isOneOpen = this.#pool.totalCount > this.#heldPlaces
    const hasTime = performance.now() - job.startedAt < maxConnectMs
    if (isOneOpen && hasTime) void backoff.end().then(() => this.#start(job))
    else this.#settle(job, error)
  }

  #send (job: Job, client: PooledClient): void {
    const { statement: { name, preparedAs = name, text }, values } = job
    let isDone = false
    // pg's query_timeout would discard a result that arrived while the event loop was blocked.
    const timer = setTimeout(() => setImmediate(() => {
      if (isDone) return
      isDone = true
      this.#giveUp(job, client)
    }), this.#options.maxResultMs)
    client.query({ name: preparedAs, text, values, rowMode: 'array' },
      (error: Error | null, result: pg.QueryArrayResult<Row>) => {
        if (isDone) return
        isDone = true
        clearTimeout(timer)
        if (error !== null) return this.#fail(job, client, error)
        client.release()
        this.#settle(job, undefined, result.rows)
      })
  }

  #fail (job: Job, client: PooledClient, error: Error): void {
    const isStale = isStalePlan(error)
    const isOld = performance.now() - client.startedAt > minReadOnlyMs
    const isLost = isFatal(error) || !(error instanceof pg.DatabaseError)
    client.release(isLost || isStale || (isReadOnly(error) && isOld))
    if (isLost) this.#lose()
    if (isReadOnly(error)) this.#options.servers.forget()
    // The server has not run a statement with a stale plan. All connections may have one.
    if (isStale && job.stalePlans++ < this.#options.max) this.#start(job)
    else this.#settle(job, error)
  }

  #lose (): void {
    connectionEvents.publish({ event: 'lost' })
    this.#options.servers.forget()
  }

  /** After this, the outcome of the statement is unknown. */
  #giveUp (job: Job, client: PooledClient): void {
    client.reset()
    connectionEvents.publish({ event: 'timed_out' })
    this.#options.servers.forget()
    this.#heldPlaces++
    // Without this wait, sessions would pile up on a server with hanging commits.
    this.#options.givenUp.add(client.session, () => {
      this.#heldPlaces--
      client.release(true)
    })
    this.#settle(job, slow('no result in time'))
  }

  /** Opens a connection if there is none, so that the first statement need not wait. Never rejects. */
  async openFirst (): Promise<void> {
    if (this.#pool.totalCount > 0) return
    await this.#options.servers.find().then(() => this.#pool.connect())
      .then((client) => client.release(), () => {})
  }

  /** Waits for the statements in flight. Rejects later statements. */
  async close (): Promise<void> {
    if (!this.#pool.ending) await this.#pool.end()
  }
}

const slow = (reason: string) => new ApiError(errors.DATABASE_SLOW, { cause: new Error(reason) })
