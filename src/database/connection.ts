// One pipelined connection: statements go out without waiting for the answers to those before.
import { Socket } from 'node:net'
import pg from 'pg'
import { endsConnection } from './faults.ts'

// What is borrowed of pg's own. Methods are looked for as this file is loaded: overwritten
// in vain they would be missed by nobody. What each saves is counted in test/database/wire.test.ts.
//   Connection.describe   asks with every statement what its columns are called and which types
//                         they have; here values are taken for the text they arrive as: silenced
//   Connection.stream     the socket, or TLS on it: corked, so that the statements of one turn of
//                         the event loop are one write
//   Query.handleDataRow   makes an object of each row: overwritten
//   Query.name            set apart, since pg copies an object of options, for a microsecond
const overwritten: Array<[owner: { name: string, prototype: object }, method: string]> =
  [[pg.Connection, 'describe'], [pg.Query, 'handleDataRow']]
for (const [{ name, prototype }, method] of overwritten) {
  if (!(method in prototype)) throw new Error(`this version of pg has no ${name}.${method}`)
}

/** A row as the server wrote it: every value as text, in the order of the columns. */
export type Row = Array<string | null>

/** Named, so that each connection plans it once. */
export interface Statement {
  name: string
  text: string
}

interface ParameterStatus { parameterName: string, parameterValue: string }

export interface ConnectionOptions {
  url: string
  /** 0: the role's own limit. */
  statementTimeoutMs: number
}

export interface Connection {
  /** Of its server alone. */
  url: string

  /** Resolves once it takes statements. Rejects with the server's or the network's word; then close it. */
  connect (): Promise<void>

  /** Sends a statement at once. Rejects with the server's word on it, or what became of the connection. */
  run (statement: Statement, values: unknown[]): Promise<Row[]>

  /** How many statements were sent and are not answered yet. */
  waiting (): number

  /** To be called every `tickMs`, as far as the event loop gets to it: its clock for silence. */
  tick (): void

  /** From now on it closes when the server reports that it has become read-only. */
  closeWhenReadOnly (): void

  /** Whether it has had statements waiting for a second and answered none of them. */
  isSilent (): boolean

  /** False once it was told to close, by us or by the server, or was lost: it takes no more statements. */
  isOpen (): boolean

  /** Takes no more statements, and closes when those it has are answered. */
  close (): void

  /** Closes at once. What was sent on it is rejected, and may have happened. */
  closeNow (): void

  /** Lets the process end without it. */
  unref (): void

  /** Resolves when it is closed, by whomever. */
  closed: Promise<void>
}

export const tickMs = 100
/** A second's worth. In ticks, since a lagging event loop is late for answers and ticks alike. */
const silentTicks = 10

/** How long a server may take to say goodbye. */
const goodbyeMs = 1000

export function createConnection ({ url, statementTimeoutMs }: ConnectionOptions): Connection {
  const socket = new Socket()
  const client = new pg.Client({
    connectionString: url,
    stream: () => socket,
    pipeline: true,
    keepAlive: true,
    // Then every second: a peer that vanished in silence is found out before something is asked of it.
    keepAliveInitialDelayMillis: 10_000,
    application_name: 'plant-store',
    statement_timeout: statementTimeoutMs,
    // For a server that no longer answers at all: the connection is closed then and
    // with it everything sent on it, so the server's own limit must come first.
    query_timeout: (statementTimeoutMs === 0 ? 5000 : statementTimeoutMs) + 1000
  })
  Object.assign(client.connection, { describe: () => {} })

  const closed = new Promise<void>((resolve) => client.once('end', resolve))
  let waiting = 0
  let ticksInSilence = 0
  let isCorked = false
  let isOpen = true
  let isReadOnly = false

  function close (): void {
    isOpen = false
    if (waiting > 0) return
    client.end()
    setTimeout(() => socket.destroy(), goodbyeMs).unref()
  }

  function closeNow (): void {
    isOpen = false
    socket.destroy()
  }

  // Without a listener a lost connection would end the process. Whatever was
  // under way is told by its own callback. The client refuses all further
  // statements but leaves it to the server to close.
  client.on('error', closeNow)

  /** One write to the socket for all statements of this turn of the event loop, while the server has work. */
  function cork (): void {
    if (isCorked) return
    isCorked = true
    client.connection.stream.cork()
    if (waiting > 1) setImmediate(uncork)
  }

  function uncork (): void {
    isCorked = false
    client.connection.stream.uncork()
  }

  function run (statement: Statement, values: unknown[]): Promise<Row[]> {
    waiting++
    cork()
    return new Promise((resolve, reject) => {
      const query = new TextQuery(statement, values, (error?: Error) => {
        waiting--
        ticksInSilence = 0
        if (!isOpen || endsConnection(error)) close()
        if (error) reject(error)
        // What it read may be out of date: another server may take the writes by now.
        else if (isReadOnly) reject(new Error('the server has become read-only'))
        else resolve(query.received)
      })
      client.query(query)
      if (waiting === 1) uncork()
    })
  }

  function closeWhenReadOnly (): void {
    client.connection.on('parameterStatus', ({ parameterName, parameterValue }: ParameterStatus) => {
      isReadOnly = parameterName === 'default_transaction_read_only' && parameterValue === 'on'
      if (isReadOnly) close()
    })
  }

  return {
    url,
    connect: async () => { await client.connect() },
    run,
    closeWhenReadOnly,
    waiting: () => waiting,
    tick () { ticksInSilence = waiting === 0 ? 0 : ticksInSilence + 1 },
    isSilent: () => ticksInSilence >= silentTicks,
    isOpen: () => isOpen,
    close,
    closeNow,
    unref () { socket.unref() },
    closed
  }
}

/** Hands on the text of each value: no row objects, no type conversion, nothing looked up by column name. */
class TextQuery extends pg.Query {
  declare name: string

  constructor ({ name, text }: Statement, values: unknown[], callback: (error?: Error) => void) {
    super(text, values, callback)
    this.name = name
  }

  // Not `rows`: that is an option of the class it extends.
  received: Row[] = []
  handleDataRow ({ fields }: { fields: Row }): void { this.received.push(fields) }
}
