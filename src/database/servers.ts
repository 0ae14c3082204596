// Chooses the server of DATABASE_URL for new connections, and prepares their sessions.
import type pg from 'pg'
import { ApiError, errors } from '../errors.ts'
import { Client, commandConnectTimeoutMs } from './client.ts'
import { parseConnectionString, type Server, type Target } from './connection-string.ts'

/** When a server is unfit, by `target_session_attrs`. `read-write`: if it is a standby or read-only. */
const unfitWhen: Record<Target, string> = {
  'read-write': "current_setting('transaction_read_only')::bool",
  primary: 'pg_is_in_recovery()',
  any: 'false'
}

/** With several servers, a dead one must not delay the search for the primary. */
const searchTimeoutMs = 1000

// A prepared statement keeps its plan until PostgreSQL analyzes the table. A plan for a small table would
// read the whole table, even after thousands of rows were added. So allow only index scans.
const sessionSettings = {
  enable_seqscan: 'off',
  enable_bitmapscan: 'off',
  // Above `read committed`, concurrent creates of one row fail.
  default_transaction_isolation: 'read committed'
}

export type SessionSettings = Record<string, string>

/** The server responds, but must not be used. */
class UnfitServer extends Error {}

export class Servers {
  readonly #servers: Server[]
  readonly #target: Target
  /** The server that `find` has found last. */
  latest: Server
  /** Whether `latest` may be used for new connections. */
  #isKnown: boolean
  #search: Promise<Server> | undefined
  /** The system identifier of the first server, if there are several. */
  #system: string | undefined
  /** Whether the server has Citus. True until the first connection is open. */
  isDistributed = true

  constructor (url: string) {
    const { servers, target = 'any' } = parseConnectionString(url)
    this.#servers = servers
    this.#target = target
    this.latest = servers[0] as Server
    this.#isKnown = servers.length === 1
  }

  /** Resolves to the server for new connections: of several, to the first fit one that responds. */
  async find (): Promise<Server> {
    if (this.#isKnown) return this.latest
    this.#search ??= this.#findFit().finally(() => { this.#search = undefined })
    return this.#search
  }

  async #findFit (): Promise<Server> {
    const attempts = this.#servers.map(async (server) => {
      const client = new Client(server, searchTimeoutMs, { application_name: 'plant-store search' })
      try {
        await client.connect()
        await this.startSession(client)
        return server
      } finally {
        client.end().catch(() => {})
      }
    })
    this.latest = await Promise.any(attempts).catch(({ errors }) => {
      throw new AggregateError(errors, 'no server accepts writes')
    })
    this.#isKnown = true
    return this.latest
  }

  /** Opens a separate connection to the server that `find` chooses. */
  async connect (timeoutMs: number, options: pg.ClientConfig): Promise<Client> {
    const client = new Client(await this.find(), timeoutMs, options)
    await client.connect()
    client.endDeadline()
    return client
  }

  /** Call this when the server may accept no more writes. With several servers, `find` searches again. */
  forget (): void {
    if (this.#servers.length > 1) this.#isKnown = false
  }

  /**
   * Identifies the session and changes its settings. Rejects if the server is unfit. A pooler may run the
   * next statement in another session, so then changes no setting. docs/scaling.md gives these settings to
   * the role.
   */
  async startSession (client: Client, settings: SessionSettings = {}): Promise<void> {
    const changes = Object.entries({ ...sessionSettings, ...settings })
      .map(([name, value]) => `set_config('${name}', '${value}', false)`)
    // PostgreSQL on Linux can notice a closed connection during a statement. The statement then ends.
    const { rows: [row] } = await client.query({
      name: 'session',
      text: `select (${unfitWhen[this.#target]})::text,
        exists (select from pg_extension where extname = 'citus')::text,
        ${this.#servers.length > 1 ? '(select system_identifier::text from pg_control_system())' : 'null'},
        case when pid = $1 then pid || ' ' || backend_start end,
        case when pid = $1 then concat(${changes.join()}) end,
        case when pid = $1 and version() like '%linux%' then
          set_config('client_connection_check_interval', '500', false) end
        from pg_stat_activity where pid = pg_backend_pid()`,
      values: [client.processID],
      rowMode: 'array'
    })
    const [isUnfit, hasCitus, system, session] = row as [string, string, string | null, string | null]
    if (isUnfit === 'true') throw new UnfitServer('the server accepts no writes')
    this.#system ??= system ?? undefined
    // The nodes of Citus are several systems with the same tables.
    if (system !== null && system !== this.#system && hasCitus !== 'true') {
      throw new UnfitServer('the server belongs to another database system: restart the service to use it')
    }
    this.isDistributed = hasCitus === 'true'
    client.session = session ?? undefined
    client.endDeadline()
  }
}

/** Opens a connection for a command or a migration. Rejects with DATABASE_UNAVAILABLE on failure. */
export async function openClient (url: string, options: pg.ClientConfig): Promise<Client> {
  try {
    return await new Servers(url).connect(commandConnectTimeoutMs, options)
  } catch (cause) {
    throw new ApiError(errors.DATABASE_UNAVAILABLE, { cause })
  }
}
