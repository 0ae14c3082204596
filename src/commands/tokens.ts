// The commands `token create`, `token list` and `token revoke`.
import { createTokens, tokenState, type NewToken, type Tokens } from '../access/tokens.ts'
import type { Config } from '../config.ts'
import { withOpenDatabase } from './database.ts'
import { formatTable } from './table.ts'

const heads = ['ID', 'USER', 'LABEL', 'ACCESS', 'CREATED', 'EXPIRES', 'STATE']

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
    const table = () => formatTable(heads, rows.map((row) => Object.values(row)))
    console.log(json ? JSON.stringify(rows, null, 2) : table())
  })
}

/** Succeeds even if the tokens are already revoked. Rejects if no token has this id or user. */
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

const withTokens = (config: Config, work: (tokens: Tokens) => Promise<void>): Promise<void> =>
  withOpenDatabase(config, config.STATEMENT_TIMEOUT, (database) => work(createTokens(database)))
