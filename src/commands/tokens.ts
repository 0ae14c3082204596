// The command `token`, and the token that a first start of the service prints.
import { createInterface } from 'node:readline/promises'
import { Writable } from 'node:stream'
import { text } from 'node:stream/consumers'
import {
  createTokens, idOf, isWellFormedToken, tokenState, type NewToken, type Token, type Tokens
} from '../access/tokens.ts'
import { settings, type Config } from '../config.ts'
import { commandConnectTimeoutMs } from '../database/client.ts'
import { openDatabase, type Database } from '../database/database.ts'
import type { Table } from '../table-gateway/table.ts'
import { logCommand, withDatabase } from './database.ts'
import { formatTable } from './format.ts'

type Work = (tokens: Tokens, log: (command: string, fields: object) => Promise<void>) => Promise<void>

const withTokens = (config: Config, work: Work): Promise<void> => withDatabase(config, async (url) => {
  const database = openDatabase({
    url,
    applicationName: 'plant-store token',
    statementTimeoutMs: config.STATEMENT_TIMEOUT,
    maxConnectMs: commandConnectTimeoutMs
  })
  const query = (text: string) => database.write({ name: '', text })
  await work(createTokens(database), (...line) => logCommand(query, ...line)).finally(() => database.close())
})

export const createToken = (config: Config, token: NewToken) =>
  withTokens(config, async (tokens, log) => {
    const text = await tokens.create(token)
    console.log(text)
    await log('token create', { user: token.user, tokenId: idOf(text) })
  })

interface ListOptions {
  user?: string
  /** In ms. Lists only active tokens that were created and last used before. */
  unused?: number
  json: boolean
}

export const listTokens = (config: Config, { user, unused, json }: ListOptions) =>
  withTokens(config, async (tokens) => {
    const isListed = (token: Token) => unused === undefined ||
      (tokenState(token) === 'active' && Number(token.lastUsed) < Date.now() - unused)
    printTokens((await tokens.list(user)).filter(isListed), json)
  })

/** `id` may be `-`. Rejects if there is no such token. */
export const showToken = async (config: Config, id: string, json: boolean) => {
  const found = await readId(id)
  return withTokens(config, async (tokens) => {
    const listed = await tokens.list(undefined, found)
    if (listed.length === 0) throw noToken(`with the id ${found}`)
    printTokens(listed, json)
  })
}

/** `id` may be `-`. Succeeds even if the tokens are already revoked. Rejects if there are no such tokens. */
export const revokeTokens = async (config: Config, by: { id?: string, user?: string }) => {
  const [user, id] = [by.user, by.id && await readId(by.id)]
  return withTokens(config, async (tokens, log) => {
    const count = await tokens.revoke({ id, user })
    if (count > 0) {
      console.log(`revoked ${count}`)
      return log('token revoke', { user, tokenId: id, tokens: count })
    }
    const isKnown = (await tokens.list(user, id)).length > 0
    if (isKnown) return console.log('already revoked')
    throw noToken(id === undefined ? `of the user ${user}` : `with the id ${id}`)
  })
}

const noToken = (which: string) =>
  new Error(`There is no token ${which}. The command token list shows all tokens.`)

/** For `-`, reads a token and returns its id. As an argument, the token would stay in the shell's history. */
async function readId (id: string): Promise<string> {
  if (id !== '-') return id
  const token = (await (process.stdin.isTTY ? askForToken() : text(process.stdin))).trim()
  if (isWellFormedToken(token)) return idOf(token)
  throw new Error(token.includes('.')
    ? 'This is a JWT, which cannot be revoked: see Checks in docs/identity.md.'
    : 'Standard input has no complete token.')
}

async function askForToken (): Promise<string> {
  process.stderr.write('Token (hidden): ')
  // readline shows what a person types on its output, so this output discards everything.
  const output = new Writable({ write: (_chunk, _encoding, done) => done() })
  using terminal = createInterface({ input: process.stdin, output, terminal: true })
  const token = await terminal.question('')
  process.stderr.write('\n')
  return token
}

function printTokens (tokens: Token[], json: boolean): void {
  const rows = tokens.map((token) => ({
    id: token.id,
    user: token.user,
    label: token.label ?? '',
    access: token.readOnly ? 'read-only' : 'full',
    created: token.created.toISOString(),
    expires: token.expires?.toISOString() ?? 'never',
    // A token that was never used has the time of its creation.
    lastUsed: token.lastUsed && token.lastUsed > token.created ? token.lastUsed.toISOString() : 'never',
    state: tokenState(token)
  }))
  const heads = ['ID', 'USER', 'LABEL', 'ACCESS', 'CREATED', 'EXPIRES', 'LAST USED', 'STATE']
  console.log(json ? JSON.stringify(rows, null, 2) : formatTable(heads, rows.map(Object.values<string>)))
}

/**
 * Prints commands for the routes of `table`. Prints to standard error: standard output is the log, which must
 * not contain a token.
 */
export async function printQuickStart (
  database: Database, { name, schema }: Table, address: string, folder: string
): Promise<void> {
  const tokens = createTokens(database)
  if ((await tokens.list()).length > 0) {
    // With another DATA_DIR, the command would use another database.
    const setting = folder === settings.DATA_DIR.initial ? '' : `DATA_DIR=${quote(folder)} `
    return console.error(`To create a token: ${setting}npx plant-store token create <user>`)
  }
  const authorization = `-H 'Authorization: Bearer ${await tokens.create({ user: 'demo', readOnly: false })}'`
  const examples = Object.entries(schema.properties).map(([field, { examples }]) => [field, examples[0]])
  const row = quote(JSON.stringify({ ...Object.fromEntries(examples), id: 1 }))
  console.error(`Three commands to try, with a token for the user demo that is shown only once:

curl -X POST ${address}/${name} ${authorization} -H 'Content-Type: application/json' -d ${row}
curl ${address}/${name} ${authorization}
curl -X DELETE ${address}/${name}/1 ${authorization}
`)
}

/** Quotes a word for a POSIX shell, if necessary. */
const quote = (text: string) => /^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`
