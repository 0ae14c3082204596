// The commands token create, list and revoke.
import { createTokens, tokenState, type NewToken, type Tokens } from '../access/tokens.ts'
import type { Config } from '../config.ts'
import { openDatabase } from '../database/database.ts'
import { migrate } from '../database/migrate.ts'
import { withDatabase } from './database.ts'

export async function createToken (config: Config, token: NewToken): Promise<void> {
  await withTokens(config, async (tokens) => console.log(await tokens.create(token)))
}

export async function listTokens (
  config: Config, { user, json }: { user?: string, json: boolean }
): Promise<void> {
  await withTokens(config, async (tokens) => {
    const rows = (await tokens.list(user)).map((token) => ({
      id: token.id,
      user: token.user,
      label: token.label ?? '',
      access: token.readOnly ? 'read-only' : 'full',
      created: token.created.toISOString(),
      expires: token.expires?.toISOString() ?? 'never',
      state: tokenState(token)
    }))
    console.log(json ? JSON.stringify(rows, null, 2) : table(rows.map((row) => Object.values(row))))
  })
}

/** Succeeds also when the tokens are revoked already. Throws when there is no such token. */
export async function revokeTokens (config: Config, by: { id: string } | { user: string }): Promise<void> {
  await withTokens(config, async (tokens) => {
    const count = await tokens.revoke(by)
    if (count > 0) return console.log(`revoked ${count}`)
    const [which, isKnown] = 'id' in by
      ? [`with the id ${by.id}`, (await tokens.list()).some(({ id }) => id === by.id)]
      : [`of the user ${by.user}`, (await tokens.list(by.user)).length > 0]
    if (!isKnown) throw new Error(`There is no token ${which}. The command token list shows all tokens.`)
    console.log('already revoked')
  })
}

/** Creates tables in the server for development only: a named database may be the wrong one. */
async function withTokens (config: Config, work: (tokens: Tokens) => Promise<void>): Promise<void> {
  await withDatabase(config, async (url) => {
    if (config.DATABASE_URL === undefined && config.MIGRATE === 'on') await migrate(url, 'up')
    const database = openDatabase({ url, statementTimeoutMs: config.STATEMENT_TIMEOUT })
    try {
      await work(createTokens(database))
    } finally {
      await database.close()
    }
  })
}

function table (rows: string[][]): string {
  const heads = ['ID', 'USER', 'LABEL', 'ACCESS', 'CREATED', 'EXPIRES', 'STATE']
  const widths = heads.map((head, column) =>
    rows.reduce((width, row) => Math.max(width, (row[column] as string).length), head.length))
  return [heads, ...rows]
    .map((row) => row.map((cell, column) => cell.padEnd(widths[column] as number)).join('  ').trimEnd())
    .join('\n')
}
