// The command `token`, and the token that a first start of the service prints.
import { createTokens, tokenState, type NewToken, type Tokens } from '../access/tokens.ts'
import { settings, type Config } from '../config.ts'
import type { Database } from '../database/database.ts'
import { withOpenDatabase } from './database.ts'
import { formatTable } from './format.ts'

const withTokens = (config: Config, work: (tokens: Tokens) => Promise<void>): Promise<void> =>
  withOpenDatabase(config, config.STATEMENT_TIMEOUT, (database) => work(createTokens(database)))

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
