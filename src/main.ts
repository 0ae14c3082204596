#!/usr/bin/env -S node --max-semi-space-size=16 --heap-growing-percent=100 --no-allocation-site-pretenuring
// Left to itself V8 lets garbage pile up: four fifths more memory under load,
// five times the growth beside 50 slow readers, and not one request more. And it
// takes for long-lived what it has often seen survive a collection: under load the
// rows of lists, whose texts then stay until the costly collection of everything.
import { Argument, Command, CommanderError, InvalidArgumentError, Option } from 'commander'
import { isUserName, listTokens, parseExpiry } from './commands/tokens.ts'
import { createTokens, type Tokens } from './access/tokens.ts'
import { readConfig, type Config } from './config.ts'
import { openDatabase } from './database/database.ts'
import { findRunning, startEmbedded } from './embedded/embedded.ts'
import { migrate } from './database/migrate.ts'

const program = new Command('plant-store')
  .description('Keeps plants: an HTTP JSON service on PostgreSQL. Configured by environment variables, see docs/operating.md.')
  // Throws instead of exiting, so that every way out is the one at the end.
  .exitOverride()
  // A line of its own for each error, even where it repeats an argument that has several.
  .configureOutput({ outputError: (text, write) => write(`${text.trim().replaceAll(/\p{C}+/gu, ' ')}\n`) })

program.command('serve')
  .description('serve HTTP until a signal, without DATABASE_URL with a PostgreSQL of its own; the command when none is given')
  // Loaded when it is asked for: the other commands start in half the time.
  .action(async () => (await import('./commands/serve.ts')).serve(readConfig(process.env)))

program.command('migrate')
  .description('bring the database schema up to date, or take back the newest migration')
  .addArgument(new Argument('[direction]', 'up to the newest migration, or down by one').choices(['up', 'down']).default('up'))
  .action((direction: 'up' | 'down') => withDatabaseUrl(async (url) => {
    const done = await migrate(url, direction)
    console.log(done.length === 0 ? 'nothing to do' : done.map((name) => `${direction} ${name}`).join('\n'))
  }))

const token = program.command('token').description('create, list and revoke the tokens that callers need')

token.command('create')
  .description('make a token and print it; it cannot be shown again')
  .argument('<user>', 'whom the token names', checked(isUserName, 'A user name is 1 to 255 printable characters.'))
  .option('--expires <when>', 'such as 90d, 12h, 30s or 2027-01-01 (UTC); never when absent',
    parsed(parseExpiry, 'Expected a duration such as 90d, 12h or 30s, or a date to come such as 2027-01-01.'))
  .option('--label <text>', 'a note for operators', checked(isUserName, 'A label is 1 to 255 printable characters.'))
  .option('--read-only', 'the token may list plants only', false)
  .action((user: string, options: { expires?: Date, label?: string, readOnly: boolean }) => withTokens(async (tokens) => {
    console.log(await tokens.create({ user, ...options }))
  }))

token.command('list')
  .description('show what is known of the tokens, never the tokens themselves')
  .argument('[user]', 'only the tokens of this user')
  .option('--json', 'as JSON', false)
  .action((user: string | undefined, { json }: { json: boolean }) => withTokens(async (tokens) => {
    console.log(await listTokens(tokens, user, json))
  }))

token.command('revoke')
  .description('end the access of one token, or of all tokens of a user')
  .argument('[id]', 'as shown by token list')
  .addOption(new Option('--user <user>', 'all tokens of this user'))
  .action((id: string | undefined, { user }: { user?: string }) => {
    if ((id === undefined) === (user === undefined)) program.error('error: give either the id of a token or --user')
    return withTokens(async (tokens) => {
      const count = await tokens.revoke(id === undefined ? { user: user as string } : { id })
      if (count === 0) throw new Error('there is no such token that is not revoked already')
      console.log(`revoked ${count}`)
    })
  })

function parsed<Value> (parse: (text: string) => Value | undefined, expectation: string): (text: string) => Value {
  return (text) => {
    const value = parse(text)
    if (value === undefined) throw new InvalidArgumentError(expectation)
    return value
  }
}

function checked (isValid: (text: string) => boolean, expectation: string): (text: string) => string {
  return parsed((text) => isValid(text) ? text : undefined, expectation)
}

/** With its causes. Where a name has several addresses the message of Node's error is empty, and theirs tell. */
function explain (error: unknown): string {
  const { message, cause, errors } = error as AggregateError
  return [message, ...[cause, errors].flat().filter(Boolean).map(explain)].join(' ').trim()
}

/** The database that `serve` would use; its own server is started for the occasion unless it is running. */
async function withDatabaseUrl (work: (url: string, config: Config) => Promise<void>): Promise<void> {
  const config = readConfig(process.env)
  const url = config.DATABASE_URL ?? (await findRunning(config.DATA_DIR))?.url
  if (url !== undefined) return work(url, config)
  const embedded = await startEmbedded(config.DATA_DIR)
  try {
    await work(embedded.url, config)
  } finally {
    await embedded.close()
  }
}

async function withTokens (work: (tokens: Tokens) => Promise<void>): Promise<void> {
  await withDatabaseUrl(async (url, config) => {
    if (config.MIGRATE === 'on') await migrate(url, 'up')
    const database = openDatabase({ url, statementTimeoutMs: config.STATEMENT_TIMEOUT, maxWaiting: 1 })
    try {
      await work(createTokens(database))
    } finally {
      await database.close()
    }
  })
}

try {
  const words = process.argv.slice(2)
  // A default command of commander's would take a mistyped one for an argument.
  await program.parseAsync(words.length === 0 ? ['serve'] : words, { from: 'user' })
} catch (error) {
  if (error instanceof CommanderError) {
    // Commander has printed the line; 2 is the usual code for wrong arguments.
    process.exitCode = error.exitCode === 0 ? 0 : 2
  } else {
    console.error(explain(error))
    process.exitCode = 1
  }
}
