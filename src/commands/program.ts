// Defines the commands and their options. The other files of this folder implement the commands.
import { Command, InvalidArgumentError, Option } from 'commander'
import manifest from '../../package.json' with { type: 'json' }
import { isPrintable, isUnambiguous } from '../access/tokens.ts'
import { withDatabase } from './database.ts'
import { formatError, hideTokens, UsageError } from './format.ts'
import { createToken, listTokens, revokeTokens, showToken } from './tokens.ts'
import type { ImportOptions, importRows } from './transfer/import.ts'
import { readConfig as readSettings } from '../config.ts'
import { migrate } from '../database/migrate.ts'
import { findMisspelledSettings } from '../config-checks.ts'
import { parseDuration } from '../setting-types.ts'

const reject = (message: string): never => { throw new InvalidArgumentError(message) }

const printable = (text: string) =>
  isPrintable(text) ? text : reject('Expected 1 to 255 printable characters.')

const unambiguous =
  'Expected no spaces at an end or in a row, no invisible characters, and Unicode in form NFC.'
const newUser = (text: string) => isUnambiguous(printable(text)) ? text : reject(unambiguous)

const positiveInteger = (text: string) =>
  /^[1-9]\d{0,8}$/.test(text) ? Number(text) : reject('Expected a whole number from 1 to 999999999.')

const duration = (text: string) => parseDuration(text) > 0
  ? parseDuration(text)
  : reject('Expected a duration such as 90d, 12h or 30s.')

const idOrToken = 'the id that token list shows, or - to read the token from standard input'

// The error does not repeat the text, which may be a token.
const tokenId = (text: string) => /^(-|[0-9a-f]{16})$/.test(text)
  ? text
  : program.error(`error: expected ${idOrToken}`)

/** Parses a duration from now (`90d`) or the start of a UTC day (`2027-01-01`). */
function expiry (text: string): Date {
  const fromNow = parseDuration(text)
  const time = fromNow >= 0 ? new Date(Date.now() + fromNow).toJSON() : `${text}T00:00:00.000Z`
  const date = new Date(time)
  // `toJSON` changes a day such as February 30. PostgreSQL cannot read years after 9999, such as `+010000`.
  if (date.toJSON() === time && Number(date) > Date.now() && !time.startsWith('+')) return date
  return reject('Expected a duration such as 90d, 12h or 30s, or a future date such as 2027-01-01.')
}

/** Warns on standard error, even if `serve` then ends without a log. */
function readConfig () {
  for (const message of findMisspelledSettings()) console.error(message)
  return readSettings()
}

const program = new Command('plant-store')
  .description('Stores plants, over HTTP, in PostgreSQL. docs/operating.md lists the environment variables.')
  .version(manifest.version, '--version')
  // commander has already printed the error. 2 is the usual exit code for wrong arguments.
  .exitOverride(({ exitCode }) => process.exit(exitCode === 0 ? 0 : 2))
  .configureOutput({
    outputError: (text, write) => write(`${hideTokens(text).trim().replaceAll(/\p{C}+/gu, ' ')}\n`)
  })

program.command('serve')
  .description('serve until a signal (default); in a checkout without DATABASE_URL, start PostgreSQL, too')
  // Load serve on demand: the other commands start faster without it.
  .action(async () => {
    // Until `serve` handles this signal, it would end the process.
    process.on('SIGUSR2', () => {})
    await (await import('./serve.ts')).serve(readConfig())
  })

program.command('migrate')
  .description('migrate the database up to the newest migration')
  .action(() => withDatabase(readConfig(), async (url) => {
    const names = await migrate(url,
      () => console.error('The migration waits for a lock of another session, such as pg_dump.'))
    console.log(names.map((name) => `up ${name}`).join('\n') || 'nothing to do')
  }))

const token = program.command('token').description('create, list and revoke the tokens of users')

token.command('create')
  .description('create a token and print it; it cannot be shown again')
  .argument('<user>', 'the user of the token', newUser)
  .option('--expires <when>', 'such as 90d, 12h, 30s or 2027-01-01 (UTC); never by default', expiry)
  .option('--label <text>', 'a note for operators', printable)
  .option('--read-only', 'the token may only read', false)
  .action((user: string, options: { expires?: Date, label?: string, readOnly: boolean }) =>
    createToken(readConfig(), { user, ...options }))

token.command('list')
  .description('list the tokens with their state; the tokens themselves are not stored')
  .option('--user <user>', 'only the tokens of this user', printable)
  .option('--unused <duration>', 'only active tokens without a use for so long, such as 90d', duration)
  .option('--json', 'print JSON', false)
  .action((options: { user?: string, unused?: number, json: boolean }) => listTokens(readConfig(), options))

token.command('show')
  .description('show one token, by its id or by its text')
  .argument('<id>', idOrToken, tokenId)
  .option('--json', 'print JSON', false)
  .action((id: string, { json }: { json: boolean }) => showToken(readConfig(), id, json))

token.command('revoke')
  .description('revoke one token, or all tokens of a user')
  .argument('[id]', idOrToken, tokenId)
  .option('--user <user>', 'all tokens of this user', printable)
  .action((id: string | undefined, { user }: { user?: string }) => {
    if ((id === undefined) !== (user === undefined)) return revokeTokens(readConfig(), { id, user })
    program.error('error: expected either the id of a token or --user')
  })

// Load the code of the domains on demand, too.
const loadUsers = () => import('./users.ts')
const user = program.command('user').description('list and erase users')

user.command('list')
  .description('list the users with the numbers of their rows and tokens, and their newest change')
  .action(async () => (await loadUsers()).listUsers(readConfig()))

user.command('erase')
  .description('revoke the tokens of a user, and delete all rows and tokens')
  .argument('<user>', 'the user to erase', printable)
  .option('--yes', 'erase without a question', false)
  .action(async (user: string, { yes }: { yes: boolean }) => {
    if (!yes && !process.stdin.isTTY) {
      program.error(`error: user erase deletes all rows and tokens of ${user}. Add --yes to confirm.`)
    }
    await (await loadUsers()).eraseUser(readConfig(), user, yes)
  })

type TransferOptions = ImportOptions & { all: boolean, table?: string }

/** `load` imports the code of the command when the command runs. */
const transfer = (name: string, description: string, load: () => Promise<typeof importRows>) =>
  program.command(name)
    .description(description)
    .usage(`[options] <user> [file]\n       plant-store ${name} [options] --all [file]`)
    .argument('[user]', 'the user, unless --all is given')
    .argument('[file]', 'instead of standard input or output')
    .option('--all', 'the rows of all users: each line names its user', false)
    .option('--table <table>', 'the table, by default the first one that user list shows')
    .addOption(new Option('--format <format>', 'by default the file name tells it; without a file ndjson')
      .choices(['ndjson', 'csv', 'ndjson.gz', 'csv.gz']))
    .action(async (first: string | undefined, second: string | undefined, options: TransferOptions) => {
      // With `--all`, the only argument is the file.
      const [user, file] = options.all ? [undefined, first] : [first, second]
      if (options.all ? second !== undefined : !isPrintable(first ?? '')) {
        program.error('error: expected either --all or a user of 1 to 255 printable characters')
      }
      if (name === 'import' && !isUnambiguous(user ?? '')) program.error(`error: ${unambiguous}`)
      const { ownedTables } = await import('../domains.ts')
      const names = ownedTables.map(({ name }) => name)
      const table = ownedTables[options.table === undefined ? 0 : names.indexOf(options.table)]
      if (table === undefined) return program.error(`error: --table: expected ${names.join(' or ')}`)
      await (await load())(readConfig(), table, user, file, options)
    })

transfer('import', 'create the rows of a file; rows that exist stay as they are',
  async () => (await import('./transfer/import.ts')).importRows)
  .option('--chunk <rows>', 'commit after so many rows, instead of all or none', positiveInteger)
  .option('--skip-errors <file>', 'write rejected lines to a file and continue')
  .option('--dry-run', 'check and count, and store nothing', false)

transfer('export', 'write the rows of one moment',
  async () => (await import('./transfer/export.ts')).exportRows)

/** Runs the command that the words name, `serve` by default. */
export async function run ([command = 'serve', ...words]: string[]): Promise<void> {
  // Do not use commander's `isDefault`: `serve` would take a misspelled command as an argument.
  await program.parseAsync([command, ...words], { from: 'user' }).catch((error) => {
    if (error instanceof UsageError) program.error(`error: ${error.message}`)
    console.error(hideTokens(formatError(error)))
    // Ctrl-C at a question rejects with AbortError.
    process.exitCode = (error as Error).name === 'AbortError' ? 130 : 1
  })
}
