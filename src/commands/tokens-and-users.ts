// The command `user`.
import { createInterface } from 'node:readline/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { createTokens } from '../access/tokens.ts'
import { maxRevocationMs, type Config } from '../config.ts'
import { ownedTables, tables, type Database } from '../database/database.ts'
import { withOpenDatabase } from './database.ts'
import { countOf, formatTable } from './format.ts'

/** Replaces STATEMENT_TIMEOUT, because counting the plants of all users may take minutes. */
const statementTimeoutMs = 600_000
/** How many rows one statement deletes. A longer statement would delay the requests of other users. */
const chunk = 1000

const statement = (text: string) => ({ name: '', text })
/** Counts what each user has, or what the user $1 has. */
const users = statement(`
  select username, ${tables.map((kind) => `coalesce(sum(number) filter (where kind = '${kind}'), 0)`).join()},
    to_char(max(changed_at) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') from (
      ${ownedTables.map((table) => `select owner, '${table}', count(*), max(created_at) from ${table}
        where $1::text is null or owner = $1 group by owner union all`).join(' ')}
      select username collate "C", 'tokens', count(*), greatest(max(created_at), max(revoked_at))
      from tokens where $1 is null or username = $1 group by username
    ) as change (username, kind, number, changed_at)
  group by username order by username`)
const deleteTokens = statement('delete from tokens where username = $1 and revoked_at is not null')
// Locks the rows in order, so that the statement rarely deadlocks with batches of the service.
const deletes = ownedTables.map((table) => statement(`delete from ${table} where owner = $1
  and id in (select id from ${table} where owner = $1 order by id limit ${chunk} for update) returning id`))

// Selects the transactions that write to these tables, or those of $1 that still do.
const writers = statement(`select virtualtransaction from pg_locks
  where relation = any ('{${ownedTables.join()}}'::regclass[]) and mode = 'RowExclusiveLock'
    and database = (select oid from pg_database where datname = current_database())
    and ($1::text[] is null or virtualtransaction = any ($1))`)

export const listUsers = (config: Config) =>
  withOpenDatabase(config, statementTimeoutMs, async (database) => {
    const heads = ['user', ...tables, 'newest change'].map((head) => head.toUpperCase())
    console.log(formatTable(heads, await database.readLong(users, [null]) as string[][]))
  })

/** Asks for confirmation unless `isConfirmed`. If an erasure fails halfway, a second run completes it. */
export const eraseUser = (config: Config, user: string, isConfirmed: boolean) =>
  withOpenDatabase(config, statementTimeoutMs, async (database) => {
    const count = async () => {
      const [row] = await database.readLong(users, [user])
      const numbers = tables.map((_, index) => Number(row?.[index + 1] ?? 0))
      const counts = numbers.map((number, index) => countOf(number, tables[index] as string))
      return { numbers, text: `${new Intl.ListFormat('en').format(counts)} of ${user}` }
    }
    const before = await count()
    if (!isConfirmed) {
      using terminal = createInterface({ input: process.stdin, output: process.stderr })
      const answer = await terminal.question(`Erase ${before.text}? [y/N] `)
      if (!/^y(es)?$/i.test(answer)) throw new Error('Nothing is erased.')
    }
    await createTokens(database).revoke({ user })
    await deleteAll(database, user)
    // Instances may still accept the tokens and create rows. Their settings are unknown, so wait for the
    // longest time that settings allow. Then wait for longer transactions, such as imports.
    if ((await count()).numbers.at(-1) !== 0) {
      console.error(`Waiting ${maxRevocationMs / 1000} s for requests with the revoked tokens.`)
      await delay(maxRevocationMs)
    }
    for (let writing = await database.readLong(writers, [null]); writing.length > 0;) {
      await delay(100)
      writing = await database.readLong(writers, [writing.flat()])
    }
    await deleteAll(database, user)
    await database.write(deleteTokens, [user])
    const after = await count()
    console.log(`Erased ${before.text}.\nLeft: ${after.text}. Backups and logs are not erased.`)
    if (after.numbers.some((number) => number > 0)) {
      throw new Error(`Something still creates ${tables.join(' or ')} of ${user}. Erase again.`)
    }
    if (config.JWT_ISSUER !== undefined && user.startsWith(`${config.JWT_ISSUER}|`)) {
      console.log('The identity provider can still issue tokens for this user.')
    }
  })

async function deleteAll (database: Database, user: string): Promise<void> {
  for (const each of deletes) while ((await database.write(each, [user])).length === chunk);
}
