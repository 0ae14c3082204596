// A lane has one connection: opened when first needed, and another when it is lost or silent.
import { connectionEvents, origin, statementEvents } from '../events.ts'
import type { Connect } from './connect.ts'
import type { Connection, Row, Statement } from './connection.ts'
import { toFault } from './faults.ts'

/**
 * How many connections of a lane may be open at a time: the one in use and those that
 * are closing. Statements that hang for long shall not use up the server's connections.
 */
const maxOpen = 3

/** After a refused attempt, how long statements are rejected without trying again. */
const pauseMs = 100

export interface Lane {
  /** Rejects with DATABASE_UNAVAILABLE, or with what the server says of the statement itself. */
  run (statement: Statement, values: unknown[]): Promise<Row[]>

  /** Like `run`, and asked again on the next connection when this one is closed for its silence. */
  runAgain (statement: Statement, values: unknown[]): Promise<Row[]>

  /**
   * How many statements wait, for an answer or for a connection. What a closing
   * one has doesn't count: it must not keep out those who come when the database is back.
   */
  waiting (): number

  /** Resolves when there is a connection. */
  opened (): Promise<unknown>

  /**
   * To be called every `tickMs`. True when it closes a silent connection:
   * the next statement opens another.
   */
  tick (): boolean

  /** Resolves when the connection is closed, after the answers to all that was sent on it. */
  close (): Promise<void>
}

export function openLane (connect: Connect): Lane {
  let current: Connection | undefined
  let opening: Promise<Connection> | undefined
  let open = 0
  let queued = 0
  let pause: { until: number, error: unknown } = { until: -Infinity, error: undefined }
  const toAskAgain = new Set<() => void>()
  /** By us: any other that ends was lost. */
  const closing = new WeakSet<Connection>()

  const usable = () => current?.isOpen() ? current : undefined

  function openNext (): Promise<Connection> {
    if (performance.now() < pause.until) return Promise.reject(pause.error)
    opening ??= connect().then(keep, (error) => {
      pause = { until: performance.now() + pauseMs, error }
      throw error
    }).finally(() => { opening = undefined })
    return opening
  }

  function keep (connection: Connection): Connection {
    current = connection
    open++
    connectionEvents.publish({ event: 'opened' })
    connection.closed.then(() => {
      open--
      if (!closing.has(connection)) connectionEvents.publish({ event: 'lost' })
    })
    return connection
  }

  function beginClosing (connection: Connection): void {
    closing.add(connection)
    connection.close()
  }

  async function openForOne (): Promise<Connection> {
    queued++
    try {
      return await openNext()
    } finally {
      queued--
    }
  }

  async function run (statement: Statement, values: unknown[]): Promise<Row[]> {
    const event = statementEvents.hasSubscribers ? beginning(statement) : undefined
    try {
      const rows = await (usable() ?? await openForOne()).run(statement, values)
      if (event !== undefined) statementEvents.publish(event)
      return rows
    } catch (error) {
      if (event !== undefined) statementEvents.publish({ ...event, error })
      throw toFault(error)
    }
  }

  return {
    run,

    runAgain (statement, values) {
      const { promise, resolve, reject } = Promise.withResolvers<Row[]>()
      const first = run(statement, values)
      const again = () => resolve(firstToAnswer([first, run(statement, values)]))
      toAskAgain.add(again)
      first.then(resolve, reject).finally(() => toAskAgain.delete(again))
      return promise
    },

    opened: async () => usable() ?? await openNext(),

    waiting: () => queued + (usable()?.waiting() ?? 0),

    tick () {
      const connection = usable()
      connection?.tick()
      if (!connection?.isSilent() || open >= maxOpen) return false
      connectionEvents.publish({ event: 'given_up' })
      beginClosing(connection)
      const asked = [...toAskAgain]
      toAskAgain.clear()
      for (const again of asked) again()
      return true
    },

    async close () {
      await Promise.allSettled([opening])
      const connection = usable()
      if (connection === undefined) return
      beginClosing(connection)
      await connection.closed
    }
  }
}

const beginning = ({ name }: Statement) => ({ name, startedAt: performance.now(), origin: origin.getStore() })

/** When none has an answer: the error of the first. */
async function firstToAnswer (answers: Array<Promise<Row[]>>): Promise<Row[]> {
  try {
    return await Promise.any(answers)
  } catch (error) {
    throw (error as AggregateError).errors[0]
  }
}
