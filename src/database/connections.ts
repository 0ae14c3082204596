// The connections for one kind of statement. A connection runs one statement at a time, so no statement waits
// behind a slow one of another kind.
import pg from 'pg'
import { ApiError, errors } from '../errors.ts'
import { connectionEvents, requestContext, statementEvents } from '../events.ts'
import { Backoff } from './backoff.ts'
import { Client } from './client.ts'
import type { GivenUpSessions } from './given-up-sessions.ts'
import { isFatal, isReadOnly, isStalePlan, toConnectError, toDatabaseError } from './pg-errors.ts'

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

/** A client of pg's pool. It stays checked out: a checkout for each statement takes more processor time. */
export class PooledClient extends Client {
  declare release: (isBroken: boolean) => void
  /** Undefined behind a pooler. */
  session: string | undefined
  /** The statement in flight. */
  job: Job | undefined
  timer: NodeJS.Timeout | undefined
}

export interface ConnectionsOptions {
  max: number
  /** Opens a connection within some seconds. */
  open: () => Promise<PooledClient>
  /** After this time without a result, the connection is given up. PostgreSQL ends a statement earlier. */
  resultTimeoutMs: number
  givenUp: GivenUpSessions
  /** All kinds of statements share the pause after a failed attempt to connect. */
  backoff: Backoff
  /** Called when the server may be gone, or accept no more writes. */
  onLost: () => void
}

export class Connections {
  /** The number of statements that wait for a connection or a result. */
  pending = 0
  readonly #options: ConnectionsOptions
  readonly #clients = new Set<PooledClient>()
  readonly #idle: PooledClient[] = []
  readonly #waiting: Job[] = []
  #opening = 0
  /** Connections that were given up, and whose session the server has not ended. */
  #held = 0
  /** The pause after a write on a read-only server. The next connection may find it writable again. */
  readonly #readOnly = new Backoff()
  #lastError: unknown
  #closedError: unknown
  #closed: PromiseWithResolvers<void> | undefined

  constructor (options: ConnectionsOptions) {
    this.#options = options
  }

  /** Rejects with pg's error if the statement is at fault, otherwise with a 503. */
  run (statement: Statement, values: unknown[] = []): Promise<Row[]> {
    const { promise, resolve, reject } = Promise.withResolvers<Row[]>()
    this.pending++
    const [startedAt, context] = [performance.now(), requestContext.getStore()]
    this.#start({ statement, values, resolve, reject, startedAt, context, stalePlans: 0 })
    return promise
  }

  #start (job: Job): void {
    const client = this.#idle.pop()
    if (client !== undefined) return this.#send(client, job)
    this.#waiting.push(job)
    this.#openMore()
  }

  /** Opens a connection for a waiting statement. Rejects the waiting statements if no connection can run them. */
  #openMore (): void {
    const { size } = this.#clients
    const isFull = size + this.#opening + this.#held >= this.#options.max
    const error = this.#closedError ?? this.#options.backoff.error ?? this.#readOnly.error
    if (this.#waiting.length > this.#opening && !isFull && error === undefined) void this.#open()
    // Each open connection is in use, and becomes free or is given up.
    if (size + this.#opening > 0) return
    for (const job of this.#waiting.splice(0)) this.#settle(job, error ?? this.#lastError)
  }

  /** Opens a connection if there is none, so that the first statement need not wait. Never rejects. */
  async openFirst (): Promise<void> {
    if (this.#clients.size + this.#opening === 0) await this.#open()
  }

  async #open (): Promise<void> {
    this.#opening++
    try {
      const client = await this.#options.open()
      this.#options.backoff.succeed()
      this.#clients.add(client)
      client.once('end', () => this.#discard(client, 'lost'))
      client.timer = setTimeout(() => this.#expire(client), this.#options.resultTimeoutMs).unref()
      connectionEvents.publish({ event: 'opened' })
      this.#free(client)
    } catch (error) {
      connectionEvents.publish({ event: 'failed', error })
      this.#lastError = toConnectError(error)
      this.#options.backoff.fail(this.#lastError)
      this.#options.onLost()
      // While other connections are open, statements wait. They may wait for a long time.
      void this.#options.backoff.end().then(() => this.#openMore())
    }
    this.#opening--
    this.#openMore()
  }

  #send (client: PooledClient, job: Job): void {
    const { statement: { name, preparedAs = name, text }, values } = job
    client.job = job
    client.timer?.refresh()
    client.query({ name: preparedAs, text, values, rowMode: 'array' },
      (error: Error | null, result: pg.QueryArrayResult<Row>) => {
        // After #giveUp, the statement has already been rejected.
        if (client.job !== job) return
        client.job = undefined
        if (error === null) this.#succeed(client, job, result.rows)
        else this.#fail(client, job, error)
      })
  }

  #succeed (client: PooledClient, job: Job, rows: Row[]): void {
    this.#readOnly.succeed()
    this.#free(client)
    this.#settle(job, undefined, rows)
  }

  #fail (client: PooledClient, job: Job, error: Error): void {
    const isStale = isStalePlan(error)
    if (isReadOnly(error)) {
      this.#readOnly.fail(toConnectError(error))
      this.#options.onLost()
    }
    if (isStale || isReadOnly(error)) this.#discard(client)
    else if (isFatal(error) || !(error instanceof pg.DatabaseError)) this.#discard(client, 'lost')
    else this.#free(client)
    // The server has not run a statement with a stale plan. All connections may have one.
    if (isStale && job.stalePlans++ < this.#options.max) this.#start(job)
    else this.#settle(job, error)
  }

  #settle ({ statement: { name }, startedAt, context, resolve, reject }: Job, error: unknown, rows?: Row[]): void {
    this.pending--
    if (statementEvents.hasSubscribers) {
      statementEvents.publish({ name, startedAt, error, requestContext: context })
    }
    if (error === undefined) resolve(rows as Row[])
    else reject(toDatabaseError(error))
  }

  #free (client: PooledClient): void {
    const job = this.#waiting.shift()
    if (job !== undefined) this.#send(client, job)
    else if (this.#closed === undefined) this.#idle.push(client)
    else this.#discard(client)
  }

  #discard (client: PooledClient, event?: 'lost'): void {
    if (!this.#clients.delete(client)) return
    const index = this.#idle.indexOf(client)
    if (index !== -1) this.#idle.splice(index, 1)
    clearTimeout(client.timer)
    client.release(true)
    if (event !== undefined) {
      connectionEvents.publish({ event })
      this.#options.onLost()
    }
    this.#openMore()
    if (this.#clients.size === 0) this.#closed?.resolve()
  }

  #expire (client: PooledClient): void {
    const { job } = client
    // Read the result first if it arrived while the event loop was blocked.
    setImmediate(() => { if (job !== undefined && job === client.job) this.#giveUp(client, job) })
  }

  /** The outcome of the statement is unknown. */
  #giveUp (client: PooledClient, job: Job): void {
    client.job = undefined
    this.#clients.delete(client)
    client.reset()
    connectionEvents.publish({ event: 'timed_out' })
    this.#options.onLost()
    this.#lastError = new ApiError(errors.DATABASE_SLOW, { cause: new Error('no result in time') })
    const release = () => {
      this.#held--
      client.release(true)
    }
    this.#held++
    // Without this wait, sessions would pile up on a server whose commits hang.
    if (client.session === undefined) release()
    else this.#options.givenUp.add(client.session, release)
    this.#settle(job, this.#lastError)
    this.#openMore()
    if (this.#clients.size === 0) this.#closed?.resolve()
  }

  /** Waits for the statements in flight. Rejects later statements. */
  async close (): Promise<void> {
    this.#closedError = toConnectError(new Error('the service has closed the database'))
    this.#closed = Promise.withResolvers()
    for (const client of [...this.#idle]) this.#discard(client)
    if (this.#clients.size > 0) await this.#closed.promise
  }
}
