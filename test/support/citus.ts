// A proxy in front of PostgreSQL. The proxy makes some statements fail with the errors of Citus 13.2.2.
import { once } from 'node:events'
import { connect, createServer, type AddressInfo } from 'node:net'
import type { Test } from 'tap'
import { createDatabase, sql } from './database.ts'

type Fault = [sqlState: string, message: string]

/**
 * The errors that Citus sends after the loss of a worker. A statement gets the first error if it needs a new
 * connection to the worker. A statement in flight gets the second error.
 */
export const lostWorker: Fault[] = [
  ['08006', 'connection to the remote node postgres@worker-one:5432 failed with the following error: ' +
    'server closed the connection unexpectedly'],
  ['57P01', 'terminating connection due to administrator command']
]
const notPushedDown: Fault = ['0A000', 'cannot push down this subquery']
const withoutColumns: Fault =
  ['42601', 'a column definition list is required for functions returning "record"']
const twoStatements: Fault = ['42601', 'cannot insert multiple commands into a prepared statement']

/** Counts the statements in an SQL text. Ignores semicolons in comments, strings and `do` blocks. */
export function statementsOf (text: string): number {
  const bare = text.replaceAll(/\$(\w*)\$.*?\$\1\$/gs, '').replaceAll(/--.*/g, '').replaceAll(/'[^']*'/g, '')
  return bare.split(';').filter((statement) => statement.trim() !== '').length
}

/**
 * `lose` makes all statements about plants of the given users fail. After `freeze`, a connection that
 * sends a statement about plants of a frozen user receives nothing more.
 */
export async function startCitus (t: Test) {
  const database = await createDatabase(t)
  await sql(database, `update pg_extension set extname = 'citus' where extname = 'plpgsql';
    create function raise_as_citus (text, text) returns void language plpgsql
      as $$ begin raise exception using errcode = $1, message = $2; end $$`)
  let lost: { users: string[], fault: Fault } | undefined
  let frozen: string[] = []
  let noticeFrozen = () => {}
  const statements = new Set<string>()

  function faultOf (statement: string, values: string[]): Fault | undefined {
    if (!statement.startsWith('plant')) return
    const isOf = (user: string) => values.some((value) => value === user || value.includes(`"${user}"`))
    if (statement === 'plants-pages') return notPushedDown
    return lost?.users.some(isOf) ? lost.fault : undefined
  }

  /**
   * Returns the message to send to PostgreSQL: the client's message, or a message that raises an error.
   * Returns undefined if the message is a statement for a frozen user.
   */
  function replace (message: Buffer): Buffer | undefined {
    const kind = String.fromCharCode(message[0] as number)
    if (kind === 'Q' || kind === 'P') {
      const fault = faultOfText(message.toString('utf8', 5).replace(/\0+$/, ''))
      if (fault === undefined) return message
      return kind === 'Q' ? query(raise(fault)) : parse(nameOf(message), raise(fault))
    }
    if (kind !== 'B') return message
    const { statement, values } = readBind(message)
    statements.add(statement)
    if (statement.startsWith('plant') && frozen.some((user) => values.includes(user))) {
      noticeFrozen()
      return undefined
    }
    const fault = faultOf(statement, values)
    return fault === undefined ? message : Buffer.concat([parse('', raise(fault)), bindWithoutValues])
  }

  const server = createServer((near) => {
    const { hostname, port } = new URL(database)
    const far = connect(Number(port), hostname)
    far.pipe(near)
    for (const [one, other] of [[near, far], [far, near]] as const) {
      one.on('error', () => {}).on('close', () => other.destroy())
    }
    let received = Buffer.alloc(0)
    // The first message of a connection begins with its length. Later messages begin with a type letter.
    let hasStarted = false
    near.on('data', (chunk) => {
      received = Buffer.concat([received, chunk])
      for (;;) {
        const start = hasStarted ? 1 : 0
        if (received.length < start + 4 || received.length < start + received.readInt32BE(start)) return
        const message = received.subarray(0, start + received.readInt32BE(start))
        received = received.subarray(message.length)
        const replaced = hasStarted ? replace(message) : message
        hasStarted = true
        if (replaced === undefined) far.unpipe(near)
        else far.write(replaced)
      }
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => { server.close() })
  const url = new URL(database)
  url.hostname = '127.0.0.1'
  url.port = String((server.address() as AddressInfo).port)

  return {
    url: url.href,
    /** The names of the prepared statements that the service has executed so far. */
    statements,
    lose (users: string[], fault: Fault) { lost = { users, fault } },
    /** Resolves when the proxy has received a statement about plants of one of the users. */
    freeze (users: string[]): Promise<void> {
      frozen = users
      return new Promise((resolve) => { noticeFrozen = resolve })
    }
  }
}

function faultOfText (text: string): Fault | undefined {
  if (/\bselect\s+from plants\b/i.test(text)) return withoutColumns
  if (/\b(alter|drop)\b[^]*\bplants\b/i.test(text) && statementsOf(text) > 1) return twoStatements
}

const raise = ([sqlState, message]: Fault) => `select raise_as_citus('${sqlState}', '${message}')`

// Message formats: https://www.postgresql.org/docs/18/protocol-message-formats.html

function build (kind: string, ...parts: Buffer[]): Buffer {
  const length = Buffer.alloc(4)
  length.writeInt32BE(4 + parts.reduce((sum, part) => sum + part.length, 0))
  return Buffer.concat([Buffer.from(kind), length, ...parts])
}

const query = (text: string) => build('Q', Buffer.from(`${text}\0`))
const parse = (name: string, text: string) => build('P', Buffer.from(`${name}\0${text}\0\0\0`))
const bindWithoutValues = build('B', Buffer.alloc(8))

const nameOf = (parse: Buffer) => parse.toString('utf8', 5, parse.indexOf(0, 5))

function readBind (message: Buffer): { statement: string, values: string[] } {
  const start = message.indexOf(0, 5) + 1
  const end = message.indexOf(0, start)
  const values: string[] = []
  const formats = end + 1
  let at = formats + 2 + 2 * message.readInt16BE(formats)
  const count = message.readInt16BE(at)
  at += 2
  for (let index = 0; index < count; index++) {
    // A length of -1 stands for null.
    const length = message.readInt32BE(at)
    at += 4
    if (length === -1) continue
    values.push(message.toString('utf8', at, at + length))
    at += length
  }
  return { statement: message.toString('utf8', start, end), values }
}
