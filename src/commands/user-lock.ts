// Keeps imports away from a user who is being erased: each user has an advisory lock, and all users have one.
// A transaction holds the lock: behind a pooler, a session does not keep its connection.
import type pg from 'pg'
import { openClient } from '../database/servers.ts'
import { beginTransaction, closeClient } from './database.ts'

/** PgBouncer ends a wait for a server connection after 120 s. */
export const maxSilenceMs = 130_000

/** The lock of a user. Without a name, the lock of an import for all users. */
const keyOf = (parameter: string) => `hashtextextended('plant-store user ' || coalesce(${parameter}, ''), 0)`

async function open (url: string, options: pg.ClientConfig): Promise<pg.Client> {
  const client = await openClient(url, options)
  await client.query(`${beginTransaction}; set local statement_timeout = 0;
    set local idle_in_transaction_session_timeout = 0`)
  return client
}

/**
 * Rejects if the user is being erased. `check` rejects if the lock is lost. Call `check` before each commit:
 * an erasure waits only for transactions that were open while the lock was held.
 */
export async function lockForImport (url: string, user: string | undefined) {
  const client = await open(url, { application_name: 'plant-store import', query_timeout: maxSilenceMs })
  const { rows: [row] } =
    await client.query(`select pg_try_advisory_xact_lock_shared(${keyOf('$1')}) as granted`, [user])
  const lock = { check: () => client.query('select'), [Symbol.asyncDispose]: () => closeClient(client) }
  if (row.granted) return lock
  await closeClient(client)
  throw new Error(`user erase${user === undefined ? '' : ` of ${user}`} is running. Import after its end.`)
}

/** Selects the transactions of imports that may create rows of the user $1. */
export const importsOf = `locktype = 'advisory' and mode = 'ShareLock' and objsubid = 1
  and classid::bigint << 32 | objid::bigint in (${keyOf('$1')}, ${keyOf('null')})`

/** From now on, imports of the user fail. `locked` resolves when earlier imports have ended. */
export async function lockForErasure (url: string, user: string) {
  const client = await open(url, { application_name: 'plant-store user' })
  const locked = client.query(
    `select pg_advisory_xact_lock(${keyOf('$1')}), pg_advisory_xact_lock(${keyOf('null')})`, [user])
  locked.catch(() => {})
  return { locked, release: () => client.query('commit'), [Symbol.asyncDispose]: () => closeClient(client) }
}
