// The commands `user list` and `user erase`.
import { createInterface } from 'node:readline/promises'
import { setTimeout as delay } from 'node:timers/promises'
import type pg from 'pg'
import { revokeByUser } from '../access/tokens.ts'
import { maxStatementTimeout, maxTokenCacheTtl, type Config } from '../config.ts'
import { connectTimeoutMs } from '../database/client.ts'
import { ownedTables, tableNames } from '../domains.ts'
import { maxQueueMs } from '../scheduling/batcher.ts'
import { parseDuration } from '../setting-types.ts'
import { beginTransaction, logCommand, withClient } from './database.ts'
import { countOf, formatTable } from './format.ts'
import { importsOf, lockForErasure } from './user-lock.ts'

/** Replaces STATEMENT_TIMEOUT, because counting the rows of all users may take minutes. */
const statementTimeoutMs = 600_000
/** The longest time that a revoked token has effects: see "After a revocation" in docs/reliability.md. */
const maxRevocationMs =
  parseDuration(maxTokenCacheTtl) + maxQueueMs + 2 * connectTimeoutMs +
  parseDuration(maxStatementTimeout) + 3000
// pg ends a statement of a server that does not respond.
const options = { query_timeout: statementTimeoutMs + 10_000 }
/** How many rows one statement deletes. A longer statement would delay the requests of other users. */
const chunk = 1000

const owned = ownedTables.map(({ name }) => name)
const toJson = (time: string) => `to_char(${time} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`
/** Counts what each user has, or what the user $1 has. */
const users = `
  select username,
    ${tableNames.map((kind) => `coalesce(sum(number) filter (where kind = '${kind}'), 0)`).join()},
    ${toJson('max(changed_at)')} from (
      ${owned.map((name) => `select owner, '${name}', count(*), max(created_at) from ${name}
        where $1::text is null or owner = $1 group by owner union all`).join(' ')}
      select username collate "C", 'tokens', count(*), greatest(max(created_at), max(revoked_at))
      from tokens where $1 is null or username = $1 group by username
    ) as change (username, kind, number, changed_at)
  group by username order by username`
const deleteTokens = 'delete from tokens where username = $1 and revoked_at is not null'
// Locks the rows in order, so that the statement rarely deadlocks with batches of the service. With `in`,
// PostgreSQL could run the subselect again for each row, if it expects few rows.
const deletes = owned.map((name) => `delete from ${name}
  where owner = $1 and id >= $2 and id <= (select max(id) from (
    select id from ${name} where owner = $1 and id >= $2 order by id limit ${chunk} for update
  ) as chunk) returning id`)

// Selects the transactions that may create rows of the user $1, or those of $2 that still may.
const writers = `select distinct virtualtransaction, case
      when pid is null then 'a prepared transaction'
      else format('the transaction of %s, process %s, since %s', coalesce(nullif(application_name, ''), '?'),
        pid, coalesce(${toJson('xact_start')}, '?'))
    end
  from pg_locks left join pg_stat_activity using (pid)
  where (relation = any ('{${owned.join()}}'::regclass[]) and mode = 'RowExclusiveLock' or ${importsOf})
    and database = (select oid from pg_database where datname = current_database())
    and ($2::text[] is null or virtualtransaction = any ($2))`

export const listUsers = (config: Config) => withClient(config, 'user', options, async (client) => {
  const heads = ['user', ...tableNames, 'newest change'].map((head) => head.toUpperCase())
  console.log(formatTable(heads, await run(client, users, [undefined])))
})

/** Asks for confirmation unless `isConfirmed`. If an erasure fails halfway, a second run completes it. */
export const eraseUser = (config: Config, user: string, isConfirmed: boolean) =>
  withClient(config, 'user', options, async (client, url) => {
    const count = async () => {
      const [row] = await run(client, users, [user])
      return tableNames.map((_, index) => Number(row?.[index + 1] ?? 0))
    }
    let before = await count()
    const isUnknown = () => before.every((number) => number === 0)
    if (isUnknown()) {
      // An open transaction, such as an import, may have created the first rows of the user.
      await waitForWriters(client, user)
      before = await count()
    }
    if (isUnknown()) {
      const kinds = tableNames.join(' or ')
      throw new Error(`There are no ${kinds} of ${user}. The command user list shows all users.`)
    }
    if (!isConfirmed) {
      using terminal = createInterface({ input: process.stdin, output: process.stderr })
      const answer = await terminal.question(`Erase ${formatNumbers(before)} of ${user}? [y/N] `)
      if (!/^y(es)?$/i.test(answer)) throw new Error('Nothing is erased.')
    }
    await using lock = await lockForErasure(url, user)
    await run(client, revokeByUser.text, [user])
    const early = await deleteAll(client, user)
    // Instances may still accept the tokens and create rows. Their settings are unknown, so wait for the
    // longest time that settings allow. Then wait for longer transactions, and for imports.
    if ((await count()).at(-1) !== 0) {
      console.error(`Waiting ${maxRevocationMs / 1000} s for requests with the revoked tokens.`)
      await delay(maxRevocationMs)
    }
    await waitForWriters(client, user)
    await lock.locked
    const late = await deleteAll(client, user)
    const erased = early.map((number, index) => number + (late[index] as number))
    erased.push((await run(client, `${deleteTokens} returning id`, [user])).length)
    const numbers = Object.fromEntries(tableNames.map((name, index) => [name, erased[index]]))
    await logCommand((text) => client.query(text), 'user erase', { user, ...numbers })
    const after = await count()
    // Rejects if the lock was lost: an import may have begun.
    await lock.release()
    console.log(`Erased ${formatNumbers(erased)} of ${user}.`)
    console.log(`Left: ${formatNumbers(after)} of ${user}. Backups and logs are not erased.`)
    if (after.some((number) => number > 0)) {
      throw new Error(`Something still creates ${tableNames.join(' or ')} of ${user}. Erase again.`)
    }
    if (config.JWT_ISSUER !== undefined && user.startsWith(`${config.JWT_ISSUER}|`)) {
      console.log('The identity provider can still issue tokens for this user.')
    }
  })

/** Runs the statement in a transaction with settings of its own: a pooler loses the settings of a session. */
async function run (client: pg.Client, text: string, values: unknown[]): Promise<string[][]> {
  // A bitmap scan would read and sort all rows of the user for each chunk.
  await client.query(`${beginTransaction}; set local statement_timeout = ${statementTimeoutMs};
    set local enable_bitmapscan = off`)
  const { rows } = await client.query({ text, values, rowMode: 'array' })
  await client.query('commit')
  return rows
}

/** Waits for the transactions that write rows of users now. Names each that does not end soon. */
async function waitForWriters (client: pg.Client, user: string): Promise<void> {
  const find = async (ids?: string[]) => (await client.query<[id: string, name: string]>(
    { text: writers, values: [user, ids], rowMode: 'array' })).rows
  let writing = await find()
  for (let round = 0; writing.length > 0; round++) {
    if (round === 1) {
      for (const [, name] of writing) console.error(`Waiting for ${name}: it may create data of ${user}.`)
    }
    await delay(100)
    writing = await find(writing.map(([id]) => id))
  }
}

/** Resolves to the number of deleted rows of each table. */
async function deleteAll (client: pg.Client, user: string): Promise<number[]> {
  const numbers = []
  for (const each of deletes) {
    let [number, deleted]: [number, string[][]] = [0, []]
    // Each chunk starts at the last deleted id. While another session keeps an old snapshot, PostgreSQL keeps
    // the deleted rows, and a chunk that started at the first id would read all of them again.
    let last: string | undefined = String(-(2n ** 63n))
    do {
      deleted = await run(client, each, [user, last])
      last = deleted.at(-1)?.[0]
      number += deleted.length
    } while (deleted.length === chunk)
    numbers.push(number)
  }
  return numbers
}

/** Takes a number for each of `tableNames`. */
const formatNumbers = (numbers: number[]) => new Intl.ListFormat('en').format(
  numbers.map((number, index) => countOf(number, tableNames[index] as string)))
