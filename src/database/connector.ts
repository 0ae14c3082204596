// From a URL to a connection: all its servers are tried side by side, again and again until one takes
// writes or the time is over.
import { Connection, type ConnectionOptions } from './connection.ts'
import { parseServers, type Target } from './connection-string.ts'

const timeoutMs = 3000
/** While an attempt hangs another one is made this often, so that the way back is found soon. */
const retryMs = 500
/** For how long the first server that answers waits for what others say: one may have taken over from it. */
const momentMs = 200

export type Connect = () => Promise<Connection>

// What tells that a server is none to stay with.
const refusal: Record<Target, string> = {
  'read-write': "current_setting('transaction_read_only')::bool",
  primary: 'pg_is_in_recovery()',
  any: 'false'
}
// Each promotion of a standby begins a timeline. Where two servers take writes, since
// nobody stopped the first, the one with the later timeline is right.
const timelineOf = "case when pg_is_in_recovery() then '' " +
  'else left(pg_walfile_name(pg_current_wal_lsn()), 8) end'

/**
 * For all connections of one service: none stays with a server that another is
 * known to have taken over from.
 */
export function createConnector (options: ConnectionOptions): Connect {
  const { urls, target } = parseServers(options.url)
  const session = {
    name: '',
    text: `select ${refusal[target]}, ${urls.length > 1 && target !== 'any' ? timelineOf : "''"},
      exists (select from pg_extension where extname = 'citus')`
  }
  const timelines = new Map<Connection, string>()
  let newest = ''

  /** Rejects when the server is none to stay with. */
  async function open (connection: Connection): Promise<void> {
    await connection.connect()
    const [[isRefused, timeline, isCitus] = []] = await connection.run(session, [])
    if (isRefused === 't') throw new Error('the server takes no writes')
    connection.isDistributed = isCitus === 't'
    if (target === 'read-write') connection.closeWhenReadOnly()
    timelines.set(connection, timeline as string)
    connection.closed.then(() => timelines.delete(connection))
    if (timeline as string > newest) newest = timeline as string
    for (const [other, timeline] of timelines) if (timeline < newest) other.close()
    if (!connection.isOpen()) throw new Error('another server has taken over from this one')
  }

  const servers = urls.map((url) => () => new Connection({ ...options, url }))
  return () => new ConnectionRace(servers, open).outcome
}

/**
 * The first of several attempts to succeed, unless a later one closes it: other servers have a moment to tell
 * their timeline, and who is late goes on to tell it. Rejects when the last attempt left has failed.
 */
class ConnectionRace {
  readonly #servers: Array<() => Connection>
  readonly #open: (connection: Connection) => Promise<void>
  readonly #underWay = new Map<Connection, number>()
  readonly #faults: unknown[] = []
  readonly #outcome = Promise.withResolvers<Connection>()
  readonly #retry: NodeJS.Timeout
  readonly #deadline: NodeJS.Timeout
  #moment: NodeJS.Timeout | undefined
  #best: Connection | undefined
  #isOver = false

  constructor (servers: Array<() => Connection>, open: (connection: Connection) => Promise<void>) {
    this.#servers = servers
    this.#open = open
    this.#retry = setInterval(() => this.#attemptAll(), retryMs)
    this.#deadline = setTimeout(() => {
      this.#end(new Error(`no connection within ${timeoutMs} ms`))
      for (const connection of this.#underWay.keys()) connection.destroy()
    }, timeoutMs)
    this.#attemptAll()
  }

  get outcome (): Promise<Connection> {
    return this.#outcome.promise
  }

  #attemptAll (): void {
    this.#servers.forEach((create, server) => this.#attempt(create, server))
  }

  async #attempt (create: () => Connection, server: number): Promise<void> {
    let connection
    try {
      // Throws when a certificate that the URL names can't be read.
      connection = create()
      this.#underWay.set(connection, server)
      await this.#open(connection)
      this.#underWay.delete(connection)
      this.#succeed(connection, server)
    } catch (error) {
      // The client leaves it open when it has no password to give.
      connection?.destroy()
      this.#underWay.delete(connection as Connection)
      this.#faults[server] = error
      if (this.#underWay.size > 0) return
      this.#end(this.#servers.length === 1
        ? error
        : new AggregateError(this.#faults, 'no server takes writes'))
    }
  }

  #succeed (connection: Connection, server: number): void {
    if (this.#isOver) return connection.close()
    if (this.#best?.isOpen()) connection.close()
    else this.#best = connection
    clearInterval(this.#retry)
    for (const [other, its] of this.#underWay) {
      if (its !== server) continue
      this.#underWay.delete(other)
      other.destroy()
    }
    if (this.#underWay.size === 0) this.#end()
    else this.#moment ??= setTimeout(() => this.#end(), momentMs)
  }

  #end (error?: unknown): void {
    this.#isOver = true
    clearInterval(this.#retry)
    clearTimeout(this.#moment)
    if (this.#best === undefined) {
      clearTimeout(this.#deadline)
      this.#outcome.reject(error)
    } else {
      this.#deadline.unref()
      for (const other of this.#underWay.keys()) other.unref()
      this.#outcome.resolve(this.#best)
    }
  }
}

/** The connection string of the server that takes writes. */
export async function findServer (url: string): Promise<string> {
  const { urls } = parseServers(url)
  if (urls.length === 1) return url
  const connection = await createConnector({ url, statementTimeoutMs: 0 })()
  connection.close()
  return connection.url
}
