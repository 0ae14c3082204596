// Stores the batches of an import: in transactions of the given size, and at most at the given rate.
import type { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import type { Table } from '../../table-gateway/table.ts'
import { checkAll, copyAll, createChecked, insertAll, type Batch } from './batch.ts'
import type { Transfer } from './transfer.ts'

export interface StoreOptions {
  /** The most rows in a transaction. */
  chunk?: number
  /** The most rows in a second. */
  rate?: number
  /** Counts the rows that the import would create, but stores nothing. */
  dryRun: boolean
}

/** With a low rate, an import sends so many batches a second. */
const batchesPerSecond = 10
// Set the limit in the transaction: a pooler loses the settings of a session. The limit is long, because an
// insert waits for any other transaction that creates the same row. If the network drops the connection in
// the middle of a COPY, this limit does not end the session. The keepalive probes end it after 60 s.
const begin = 'begin; set local statement_timeout = 60000; set local tcp_keepalives_idle = 20; ' +
  'set local tcp_keepalives_interval = 5; set local tcp_keepalives_count = 8'
/**
 * If no byte arrives for so long, the network has dropped the connection. The server ends a statement after
 * 60 s. PgBouncer ends a wait for a server connection after 120 s.
 */
const maxSilenceMs = 130_000

export function createStore (
  table: Table, { client, signal }: Pick<Transfer, 'client' | 'signal'>,
  { rate = Infinity, chunk = Infinity, dryRun }: StoreOptions
) {
  let [created, existing, uncommitted] = [0, 0, 0]
  let committed = { created, existing }
  let note = ''
  let stored: Promise<void> = Promise.resolve()
  /** False after a batch with rows that exist. The next batch probably has such rows, too. */
  let mayCopy = true
  /** When the rate allows the next batch. */
  let nextAt = 0

  /** Emits 'timeout' on the socket if the server is silent. Between statements, the server sends nothing. */
  async function answered<Result> (work: Promise<Result>): Promise<Result> {
    const socket = client.connection.stream as Socket
    socket.setTimeout(maxSilenceMs)
    return work.finally(() => socket.setTimeout(0))
  }

  /** Does not wait until the rows are stored, so that the import reads the next lines meanwhile. */
  async function send (batch: Batch): Promise<void> {
    await stored
    const pause = nextAt - performance.now()
    if (pause > 0) await delay(Math.ceil(pause), undefined, { signal })
    if (uncommitted === 0) await answered(client.query(dryRun ? `${begin}; ${createChecked}` : begin))
    nextAt = performance.now() + batch.size * 1000 / rate
    stored = answered(store(batch))
    stored.catch(() => {})
    uncommitted += batch.size
  }

  async function store (batch: Batch): Promise<void> {
    const lines = batch.lines()
    const isCopied = mayCopy && !dryRun && batch.isSorted && await copyAll(client, table, lines)
    const count = isCopied ? batch.size : await (dryRun ? checkAll : insertAll)(client, table, lines)
    mayCopy = count === batch.size
    created += count
    existing += batch.size - count
  }

  /** Awaits the insert first. After a failed insert, `commit` would roll back without an error. */
  async function commit (noteAfter: string): Promise<void> {
    await stored
    note = '; the outcome of the last commit is unknown: import again'
    if (uncommitted > 0) await answered(client.query('commit'))
    note = noteAfter
    uncommitted = 0
    committed = { created, existing }
  }

  return {
    isFull: (batch: Batch) =>
      batch.isLarge() || batch.size >= Math.min(chunk - uncommitted, rate / batchesPerSecond),

    /** `lineNumber` is the line of the batch's last row. */
    async send (batch: Batch, lineNumber: number): Promise<void> {
      await send(batch)
      if (uncommitted === chunk) await commit(`; stored up to line ${lineNumber}`)
    },

    /** Sends the last batch, and commits. */
    async end (batch: Batch): Promise<void> {
      if (batch.size > 0) await send(batch)
      await commit('')
    },

    /** How many rows the database has received, perhaps without a commit. */
    rows: () => created + existing,

    summary: (rejected: number) => `${committed.created} created, ${committed.existing} existing, ` +
      `${rejected} rejected${dryRun ? '; nothing is stored' : note}`
  }
}
