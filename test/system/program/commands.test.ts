import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import { createDatabase, sql } from '../../support/database.ts'
import { asShipped, copyProgram, run, unmeasured } from '../../support/program.ts'

const root = join(import.meta.dirname, '../../..')

t.jobs = 4

t.test('every command has a help text', { buffered: true }, async (t) => {
  const mentions: Record<string, string[]> = {
    '': ['serve', 'migrate', 'token', 'user', 'import', 'export'],
    serve: ['DATABASE_URL'],
    migrate: ['up', 'down', '--yes', '--with-data'],
    token: ['create', 'list', 'revoke'],
    'token create': ['<user>', '--expires', '90d', '--label', '--read-only'],
    'token list': ['--user', '--json'],
    'token revoke': ['[id]', '--user'],
    'user list': [],
    'user erase': ['<user>', '--yes'],
    import: ['--all', '--format', '--chunk', '--rate', '--skip-errors', '--strict', '--dry-run'],
    export: ['--all', '--format', 'csv.gz']
  }
  await Promise.all(Object.entries(mentions).map(async ([command, words]) => {
    const { code, stdout, stderr } = await unmeasured.run([...command.split(' ').filter(Boolean), '--help'])
    t.strictSame({ code, stderr }, { code: 0, stderr: '' }, command)
    t.match(stdout, `Usage: plant-store ${command}`.trim())
    for (const word of words) t.ok(stdout.includes(word), `${command} mentions ${word}`)
  }))
})

t.test('the version is that of the package', { buffered: true }, async (t) => {
  t.strictSame(await run(['--version']), { code: 0, stdout: `${manifest.version}\n`, stderr: '' })
})

t.test('bad arguments get one line and exit code 2', { buffered: true }, async (t) => {
  const lines: Array<[string[], RegExp]> = [
    [['serv'], /^error: unknown command 'serv' \(Did you mean serve\?\)$/],
    [['migrate', 'sideways'], /'sideways' is invalid .* Allowed choices are up, down\.$/],
    [['migrate', 'down'], /^error: migrate down undoes the newest migration\. Add --yes to confirm\.$/],
    [['token', 'create'], /missing required argument 'user'$/],
    [['token', 'create', 'alice', 'bob'], /too many arguments for 'create'/],
    [['token', 'create', 'a\nb'], /'a b' is invalid .* A user name is 1 to 255 printable characters\.$/],
    [['token', 'create', 'ann', '--expires', 'soon'], /'soon' is invalid\. Expected a duration such as 90d/],
    [['token', 'revoke'], /^error: expected either the id of a token or --user$/],
    [['token', 'list', '--user', ''], /A user name is 1 to 255 printable characters\.$/],
    [['token', 'revoke', '--user', ''], /A user name is 1 to 255 printable characters\.$/],
    [['token', 'create', 'alice', '--label', ''], /A label is 1 to 255 printable characters\.$/],
    [['import'], /^error: expected either --all or a user of 1 to 255 printable characters$/],
    [['import', 'a\nb'], /^error: expected either --all or a user/],
    [['export', '--all', 'alice', 'plants.csv'], /^error: expected either --all or a user/],
    [['import', 'alice', '--chunk', '0'], /Expected a whole number from 1 to 999999999\.$/],
    [['import', 'alice', '--format', 'xml'], /Allowed choices are ndjson, csv, ndjson\.gz, csv\.gz\.$/],
    [['token', 'revoke', 'x', '--user', 'alice'], /^error: expected either the id of a token or --user$/]
  ]
  // No database listens at this address: the commands must fail before they connect.
  const unreachable = { DATABASE_URL: 'postgres://127.0.0.1:1/plants' }
  const inMain = ['migrate down', 'token revoke', 'import', 'import alice --chunk 0']
  await Promise.all(lines.map(async ([args, line]) => {
    const start = inMain.includes(args.join(' ')) ? run : unmeasured.run
    const { code, stdout, stderr } = await start(args, unreachable)
    const printed = { code, stdout, lines: stderr.split('\n').length }
    t.strictSame(printed, { code: 2, stdout: '', lines: 2 }, args.join(' '))
    t.match(stderr.trimEnd(), line)
  }))
})

t.test('npx runs the program in a checkout and passes its options on', { buffered: true }, async (t) => {
  const options = ['--expires=90d', '--read-only', '--label', 'laptop']
  const words = ['npx', 'plant-store', 'token', 'create', 'alice', ...options]
  const DATABASE_URL = await createDatabase(t)
  const env = { ...process.env, DATABASE_URL, npm_config_cache: t.testdir() }
  const { stdout } = await promisify(execFile)('env', [...asShipped, ...words], { env, cwd: root })
  t.match(stdout, /^plant_[0-9a-z]{57}\n$/)
  const created = await sql(DATABASE_URL,
    "select label, read_only, expires_at - created_at > '89d' as expires from tokens")
  t.match(created, [{ label: 'laptop', read_only: true, expires: true }])
})

t.test('the files of the image need DATABASE_URL', { buffered: true }, async (t) => {
  const { run } = await copyProgram(t.testdir())
  for (const args of [['serve'], ['migrate'], ['token', 'list']]) {
    t.strictSame(await run(args, { DATABASE_URL: undefined }), {
      code: 1,
      stdout: '',
      stderr: 'DATABASE_URL is not set: expected a PostgreSQL database, ' +
        'such as postgres://plant_store:secret@localhost:5432/plant_store\n'
    })
  }
})

t.test('a misspelled setting gets a warning', { buffered: true }, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  t.match(await run(['token', 'list'], { DATABASE_URL, LOG_LEVELS: 'debug' }),
    { code: 0, stderr: 'LOG_LEVELS is not a setting and has no effect. Did you mean LOG_LEVEL?\n' })
})

t.test('the start names the database without user and password', { buffered: true }, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const { hostname: host, port, pathname, username, password } = new URL(DATABASE_URL)
  const service = await unmeasured.serve(t, { DATABASE_URL, DRAIN_DELAY: '0' })
  const server = { host, port: Number(port), database: pathname.slice(1) }
  t.match(await service.logged('database'), { servers: [server] })
  t.notMatch(JSON.stringify(service.log), `${username}:${password}@`)
})

t.test('a HOST without an address is rejected in one line', { buffered: true }, async (t) => {
  const environment = { HOST: 'nowhere.invalid', DATABASE_URL: 'postgres://127.0.0.1:1/plants' }
  t.strictSame(await run(['serve'], environment),
    { code: 1, stdout: '', stderr: 'HOST: expected an address or a host name, got "nowhere.invalid"\n' })
})

t.test('the command token alone prints its subcommands', { buffered: true }, async (t) => {
  const { code, stdout, stderr } = await unmeasured.run(['token'])
  t.strictSame({ code, stdout }, { code: 2, stdout: '' })
  t.match(stderr, /create[^]*list[^]*revoke/)
})

t.test('a wrong configuration ends a command with a line for each fault', { buffered: true }, async (t) => {
  const environment = { DATABASE_URL: 'mysql://localhost', PORT: '65536', MIGRATE: 'perhaps' }
  for (const args of [['serve'], ['token', 'list']]) {
    const { code, stdout, stderr } = await unmeasured.run(args, environment)
    t.strictSame({ code, stdout }, { code: 1, stdout: '' })
    t.match(stderr, /^PORT: expected .*\nDATABASE_URL: expected .*\nMIGRATE: expected .*\n$/)
  }
})

t.test('an unreachable database is reported in one line', { buffered: true }, async (t) => {
  const line = 'The database cannot be reached. connect ECONNREFUSED 127.0.0.1:1\n'
  for (const MIGRATE of ['on', 'off']) {
    const environment = { MIGRATE, DATABASE_URL: 'postgres://127.0.0.1:1/plants' }
    t.strictSame(await unmeasured.run(['token', 'list'], environment), { code: 1, stdout: '', stderr: line })
  }
})
