// The commands `user list` and `user erase`.
import { createInterface } from 'node:readline/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { createTokens } from '../access/tokens.ts'
import type { Config } from '../config.ts'
import type { Database, Row } from '../database/database.ts'
import { withOpenDatabase } from './database.ts'
import { formatTable } from './table.ts'

/** Replaces STATEMENT_TIMEOUT, because counting the plants of all users may take minutes. */
const statementTimeoutMs = 600_000
/** How many plants one statement deletes. A longer statement would delay the requests of other users. */
const chunk = 1000
/** An instance may accept a revoked token for TOKEN_CACHE_TTL plus this time. */
const revalidateMs = 1000

const statement = (text: string) => ({ name: '', text })
const users = statement(`
  select username, sum(plants), sum(tokens), extract(epoch from max(changed_at)) from (
    select owner, count(*), 0, max(created_at) from plants group by owner
    union all
    select username collate "C", 0, count(*), greatest(max(created_at), max(revoked_at))
    from tokens group by username
  ) as change (username, plants, tokens, changed_at)
  group by username order by username`)
const countPlants = statement('select count(*) from plants where owner = $1')
const countTokens = statement('select count(*) from tokens where username = $1')
const deleteTokens = statement('delete from tokens where username = $1 returning id')
const deletePlants = statement(`delete from plants where owner = $1
  and id in (select id from plants where owner = $1 order by id limit ${chunk}) returning id`)

export async function listUsers (config: Config): Promise<void> {
  await withOpenDatabase(config, statementTimeoutMs, async (database) => {
    const rows = await database.readLong(users, []) as string[][]
    const cells = rows.map(([user, plants, tokens, changed]) =>
      [user, plants, tokens, new Date(Number(changed) * 1000).toISOString()] as string[])
    console.log(formatTable(['USER', 'PLANTS', 'TOKENS', 'NEWEST CHANGE'], cells))
  })
}

/** Asks for confirmation unless `isConfirmed`. If an erasure fails halfway, a second run completes it. */
export async function eraseUser (config: Config, user: string, isConfirmed: boolean): Promise<void> {
  await withOpenDatabase(config, statementTimeoutMs, async (database) => {
    const count = async () => {
      const counts = [countPlants, countTokens].map((each) => database.readLong(each, [user]))
      const [plants, tokens] = (await Promise.all(counts)).map(([row]) => row?.[0])
      return { tokens, text: `${plants} plants and ${tokens} tokens of ${user}` }
    }
    const before = await count()
    if (!isConfirmed && !await confirms(before.text)) throw new Error('Nothing is erased.')
    await createTokens(database).revoke({ user })
    const revokedAt = performance.now()
    await deleteAllPlants(database, user)
    if (before.tokens !== '0') {
      // While an instance accepts the revoked tokens, clients may create plants. Wait, then delete again.
      await delay(Math.max(0, revokedAt + config.TOKEN_CACHE_TTL + revalidateMs - performance.now()))
      await deleteAllPlants(database, user)
    }
    await database.write(deleteTokens, [user])
    console.log(`Erased ${before.text}.\nLeft: ${(await count()).text}. Backups and logs are not erased.`)
    if (user.startsWith(`${config.JWT_ISSUER}|`)) {
      console.log('The identity provider can still issue tokens for this user.')
    }
  })
}

async function confirms (what: string): Promise<boolean> {
  const { stdin: input, stderr: output } = process
  using terminal = createInterface({ input, output })
  return /^y(es)?$/i.test(await terminal.question(`Erase ${what}? [y/N] `))
}

async function deleteAllPlants (database: Database, user: string): Promise<void> {
  let deleted: Row[]
  do deleted = await database.write(deletePlants, [user])
  while (deleted.length === chunk)
}
