// The commands `token` and `user`, and the token that a first start of the service prints.
import { createInterface } from 'node:readline/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { createTokens, tokenState, type NewToken, type Tokens } from '../access/tokens.ts'
import { maxRevocationMs, settings, type Config } from '../config.ts'
import { ownedTables, tables, type Database, type Row } from '../database/database.ts'
import { openWatched, withDatabase } from './database.ts'

const withOpenDatabase = (
  config: Config, applicationName: string, statementTimeoutMs: number,
  work: (database: Database) => Promise<void>
): Promise<void> => withDatabase(config, async (url) => {
  const database = openWatched({ url, applicationName, statementTimeoutMs })
  await work(database).finally(() => database.close())
})

const withTokens = (config: Config, work: (tokens: Tokens) => Promise<void>): Promise<void> =>
  withOpenDatabase(config, 'plant-store token', config.STATEMENT_TIMEOUT,
    (database) => work(createTokens(database)))

export const createToken = (config: Config, token: NewToken) =>
  withTokens(config, async (tokens) => console.log(await tokens.create(token)))

export const listTokens = (config: Config, { user, json }: { user?: string, json: boolean }) =>
  withTokens(config, async (tokens) => {
    const rows = (await tokens.list(user)).map((token) => ({
      id: token.id,
      user: token.user,
      label: token.label ?? '',
      access: token.readOnly ? 'read-only' : 'full',
      created: token.created.toISOString(),
      expires: token.expires?.toISOString() ?? 'never',
      state: tokenState(token)
    }))
    const heads = ['ID', 'USER', 'LABEL', 'ACCESS', 'CREATED', 'EXPIRES', 'STATE']
    console.log(json ? JSON.stringify(rows, null, 2) : formatTable(heads, rows.map(Object.values<string>)))
  })

/** Succeeds even if the tokens are already revoked. Rejects if no token has this id or user. */
export const revokeTokens = (config: Config, { id, user }: { id?: string, user?: string }) =>
  withTokens(config, async (tokens) => {
    const count = await tokens.revoke({ id, user })
    if (count > 0) return console.log(`revoked ${count}`)
    const isKnown = (await tokens.list(user)).some((token) => id === undefined || id === token.id)
    if (isKnown) return console.log('already revoked')
    const which = id === undefined ? `of the user ${user}` : `with the id ${id}`
    throw new Error(`There is no token ${which}. The command token list shows all tokens.`)
  })

/** Prints to standard error. Standard output is the log, and the log must not contain a token. */
export async function printQuickStart (database: Database, address: string, folder: string): Promise<void> {
  const tokens = createTokens(database)
  if ((await tokens.list()).length > 0) {
    // With another DATA_DIR, the command would use another database.
    const setting = folder === settings.DATA_DIR.initial ? '' : `DATA_DIR=${quote(folder)} `
    return console.error(`To create a token: ${setting}npx plant-store token create <user>`)
  }
  const authorization = `-H 'Authorization: Bearer ${await tokens.create({ user: 'demo', readOnly: false })}'`
  const plant = '{"id": 1, "name": "Monstera deliciosa", "tag": "tropical"}'
  console.error(`Three commands to try, with a token for the user demo that is shown only once:

curl -X POST ${address}/plants ${authorization} -H 'Content-Type: application/json' -d '${plant}'
curl ${address}/plants ${authorization}
curl -X DELETE ${address}/plants/1 ${authorization}
`)
}

/** Quotes a word for a POSIX shell, if necessary. */
const quote = (text: string) => /^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`

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
// Locks the rows in order, so that the statement rarely deadlocks with batches of the service. With `in`,
// PostgreSQL could run the subselect again for each row, if it expects few rows.
const deletes = ownedTables.map((table) => statement(`delete from ${table}
  where owner = $1 and id >= $2 and id <= (select max(id) from (
    select id from ${table} where owner = $1 and id >= $2 order by id limit ${chunk} for update
  ) as chunk) returning id`))

// Selects the transactions that write to these tables, or those of $1 that still do.
const writers = statement(`select virtualtransaction from pg_locks
  where relation = any ('{${ownedTables.join()}}'::regclass[]) and mode = 'RowExclusiveLock'
    and database = (select oid from pg_database where datname = current_database())
    and ($1::text[] is null or virtualtransaction = any ($1))`)

export const listUsers = (config: Config) =>
  withOpenDatabase(config, 'plant-store user', statementTimeoutMs, async (database) => {
    const heads = ['user', ...tables, 'newest change'].map((head) => head.toUpperCase())
    console.log(formatTable(heads, await database.readLong(users, [null]) as string[][]))
  })

/** Asks for confirmation unless `isConfirmed`. If an erasure fails halfway, a second run completes it. */
export const eraseUser = (config: Config, user: string, isConfirmed: boolean) =>
  withOpenDatabase(config, 'plant-store user', statementTimeoutMs, async (database) => {
    const count = async () => {
      const [row] = await database.readLong(users, [user])
      const numbers = tables.map((_, index) => Number(row?.[index + 1] ?? 0))
      const list = new Intl.ListFormat('en').format(tables.map((kind, index) => `${numbers[index]} ${kind}`))
      return { numbers, text: `${list} of ${user}` }
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
  for (const each of deletes) {
    let deleted: Row[]
    // Each chunk starts at the last deleted id. While another session keeps an old snapshot, PostgreSQL keeps
    // the deleted rows, and a chunk that started at the first id would read all of them again.
    let last: string | null | undefined = String(-(2n ** 63n))
    do {
      deleted = await database.write(each, [user, last])
      last = deleted.at(-1)?.[0]
    } while (deleted.length === chunk)
  }
}

/** Formats rows as a text table with aligned columns. */
function formatTable (heads: string[], rows: string[][]): string {
  const widths = heads.map((head, column) =>
    rows.reduce((width, row) => Math.max(width, (row[column] as string).length), head.length))
  return [heads, ...rows]
    .map((row) => row.map((cell, column) => cell.padEnd(widths[column] as number)).join('  ').trimEnd())
    .join('\n')
}
