#!/usr/bin/env -S node --max-semi-space-size=16 --heap-growing-percent=100 --no-allocation-site-pretenuring
// Left to itself V8 lets garbage pile up: four fifths more memory under load,
// five times the growth beside 50 slow readers, and not one request more. And it
// takes for long-lived what it has often seen survive a collection: under load the
// rows of lists, whose texts then stay until the costly collection of everything.
//
// The commands by name, with their options; what they do is in commands/.
import { Argument, Command, CommanderError } from 'commander'
import manifest from '../package.json' with { type: 'json' }
import { expiry, label, rejectOptionsConsumedByNpm, userName } from './commands/arguments.ts'
import { formatError } from './commands/format-error.ts'
import { runMigrations } from './commands/migrate.ts'
import { reexecWithNodeFlags } from './commands/node-options.ts'
import { createToken, listTokens, revokeTokens } from './commands/tokens.ts'
import { readConfig } from './config.ts'

const program = new Command('plant-store')
  .description('Keeps plants: an HTTP JSON service on PostgreSQL. ' +
    'Configured by environment variables, see docs/operating.md.')
  .version(manifest.version, '--version')
  // Throws instead of exiting, so that every way out is the one at the end.
  .exitOverride()
  // A line of its own for each error, even where it repeats an argument that has several.
  .configureOutput({ outputError: (text, write) => write(`${text.trim().replaceAll(/\p{C}+/gu, ' ')}\n`) })

program.command('serve')
  .description('serve HTTP until a signal, without DATABASE_URL with a PostgreSQL of its own; ' +
    'the command when none is given')
  .action(async () => {
    reexecWithNodeFlags()
    // Loaded when it is asked for: the other commands start in half the time.
    const { serve } = await import('./commands/serve.ts')
    await serve(readConfig(process.env))
  })

program.command('migrate')
  .description('bring the database schema up to date, or take back the newest migration')
  .addArgument(new Argument('[direction]', 'up to the newest migration, or down by one')
    .choices(['up', 'down'])
    .default('up'))
  .option('--yes', 'going down is meant', false)
  .option('--with-data', 'go down even when rows are lost by it', false)
  .action((direction: 'up' | 'down', { yes, withData }: { yes: boolean, withData: boolean }) => {
    if (direction === 'down' && !yes) {
      program.error('error: migrate down drops what the newest migration made, it needs --yes')
    }
    return runMigrations(readConfig(process.env), direction, { withData })
  })

const token = program.command('token').description('create, list and revoke the tokens that callers need')

token.command('create')
  .description('make a token and print it; it cannot be shown again')
  .argument('<user>', 'whom the token names', userName)
  .option('--expires <when>', 'such as 90d, 12h, 30s or 2027-01-01 (UTC); never when absent', expiry)
  .option('--label <text>', 'a note for operators', label)
  .option('--read-only', 'the token may list plants only', false)
  .hook('preAction', rejectOptionsConsumedByNpm)
  .action((user: string, options: { expires?: Date, label?: string, readOnly: boolean }) =>
    createToken(readConfig(process.env), { user, ...options }))

token.command('list')
  .description('show what is known of the tokens, never the tokens themselves')
  .option('--user <user>', 'only the tokens of this user', userName)
  .option('--json', 'as JSON', false)
  .action((options: { user?: string, json: boolean }) => listTokens(readConfig(process.env), options))

token.command('revoke')
  .description('end the access of one token, or of all tokens of a user')
  .argument('[id]', 'as shown by token list')
  .option('--user <user>', 'all tokens of this user', userName)
  .action((id: string | undefined, { user }: { user?: string }) => {
    if (id !== undefined && user === undefined) return revokeTokens(readConfig(process.env), { id })
    if (user !== undefined && id === undefined) return revokeTokens(readConfig(process.env), { user })
    program.error('error: give either the id of a token or --user')
  })

try {
  const words = process.argv.slice(2)
  // A default command of commander's would take a mistyped one for an argument.
  await program.parseAsync(words.length === 0 ? ['serve'] : words, { from: 'user' })
} catch (error) {
  if (error instanceof CommanderError) {
    // Commander has printed the line; 2 is the usual code for wrong arguments.
    process.exitCode = error.exitCode === 0 ? 0 : 2
  } else {
    console.error(formatError(error))
    process.exitCode = 1
  }
}
