// The commands `user list` and `user erase`.
import { createInterface } from 'node:readline/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { createTokens } from '../access/tokens.ts'
import { maxRevocationMs, type Config } from '../config.ts'
import { ownedTables, tables, type Database, type Row } from '../database/database.ts'
import { withOpenDatabase } from './database.ts'
import { formatTable } from './table.ts'

/** Replaces STATEMENT_TIMEOUT, because counting the plants of all users may take minutes. */
const statementTimeoutMs = 600_000
/** How many rows one statement deletes. A longer statement would delay the requests of other users. */
const chunk = 1000
/** How often `untilWritersEnd` looks whether transactions have ended. */
const checkMs = 100

const statement = (text: string) => ({ name: '', text })
const countsByOwner = ownedTables.map((table) =>
  `select owner, '${table}', count(*), max(created_at) from ${table} group by owner`)
const users = statement(`
  select username, ${tables.map((kind) => `coalesce(sum(number) filter (where kind = '${kind}'), 0)`).join()},
    extract(epoch from max(changed_at)) from (
      ${countsByOwner.join(' union all ')}
      union all
      select username collate "C", 'tokens', count(*), greatest(max(created_at), max(revoked_at))
      from tokens group by username
    ) as change (username, kind, number, changed_at)
  group by username order by username`)
const counts = [
  ...ownedTables.map((table) => statement(`select count(*) from ${table} where owner = $1`)),
  statement('select count(*) from tokens where username = $1')
]
const deleteTokens = statement('delete from tokens where username = $1 and revoked_at is not null')
// Locks the rows in order, so that the statement rarely deadlocks with batches of the service.
const deletes = ownedTables.map((table) => statement(`delete from ${table} where owner = $1
  and id in (select id from ${table} where owner = $1 order by id limit ${chunk} for update) returning id`))

// Selects the transactions that write to these tables, or those of $1 that still do.
const writers = statement(`select virtualtransaction from pg_locks
  where relation = any ('{${ownedTables.join()}}'::regclass[]) and mode = 'RowExclusiveLock'
    and database = (select oid from pg_database where datname = current_database())
    and ($1::text[] is null or virtualtransaction = any ($1))`)

export async function listUsers (config: Config): Promise<void> {
  await withOpenDatabase(config, statementTimeoutMs, async (database) => {
    const rows = await database.readLong(users, []) as string[][]
    const cells = rows.map((row) => row.with(-1, new Date(Number(row.at(-1)) * 1000).toISOString()))
    console.log(formatTable(['user', ...tables, 'newest change'].map((head) => head.toUpperCase()), cells))
  })
}

/** Asks for confirmation unless `isConfirmed`. If an erasure fails halfway, a second run completes it. */
export async function eraseUser (config: Config, user: string, isConfirmed: boolean): Promise<void> {
  await withOpenDatabase(config, statementTimeoutMs, async (database) => {
    const count = async () => {
      const rows = await Promise.all(counts.map((each) => database.readLong(each, [user])))
      const numbers = rows.map(([row]) => Number(row?.[0]))
      const list = new Intl.ListFormat('en').format(tables.map((kind, index) => `${numbers[index]} ${kind}`))
      return { numbers, text: `${list} of ${user}` }
    }
    const before = await count()
    if (!isConfirmed && !await confirms(before.text)) throw new Error('Nothing is erased.')
    await createTokens(database).revoke({ user })
    await deleteAll(database, user)
    // Instances may still accept the tokens and create rows. Their settings are unknown, so wait for the
    // longest time that settings allow. Then wait for longer transactions, such as imports.
    if ((await count()).numbers.at(-1) !== 0) {
      console.error(`Waiting ${maxRevocationMs / 1000} s for requests with the revoked tokens.`)
      await delay(maxRevocationMs)
    }
    await untilWritersEnd(database)
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
}

async function confirms (what: string): Promise<boolean> {
  const { stdin: input, stderr: output } = process
  using terminal = createInterface({ input, output })
  return /^y(es)?$/i.test(await terminal.question(`Erase ${what}? [y/N] `))
}

/** Waits for the end of each transaction that writes now. Later transactions do not matter. */
async function untilWritersEnd (database: Database): Promise<void> {
  let left: Row[] = await database.readLong(writers, [null])
  while (left.length > 0) {
    await delay(checkMs)
    left = await database.readLong(writers, [left.flat()])
  }
}

async function deleteAll (database: Database, user: string): Promise<void> {
  for (const each of deletes) while ((await database.write(each, [user])).length === chunk);
}
