import { execFile } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { gunzipSync } from 'node:zlib'
import t from 'tap'
import { createDatabase, sql } from '../../support/database.ts'
import { asShipped, copyProgram, unmeasured } from '../../support/program.ts'
import { countPlants, ndjson, startImport, until } from '../../support/transfer.ts'

const root = join(import.meta.dirname, '../../..')

const folder = t.testdir()
const many = 20_000
const manyLines = ndjson(many)
const file = join(folder, 'many.ndjson')
await writeFile(file, manyLines)

t.test('bad arguments get one line and exit code 2', async (t) => {
  const lines: Array<[string[], RegExp]> = [
    [['serv'], /^error: unknown command 'serv' \(Did you mean serve\?\)$/],
    [['token', 'create', 'a\nb'], /'a b' is invalid .* A user name is 1 to 255 printable characters\.$/],
    [['token', 'revoke', 'x', '--user', 'alice'], /^error: expected either the id of a token or --user$/],
    [['import', 'a\nb'], /^error: expected either --all or a user/],
    [['export', '--all', 'alice', 'plants.csv'], /^error: expected either --all or a user/],
    [['import', 'alice', '--format', 'xml'], /Allowed choices are ndjson, csv, ndjson\.gz, csv\.gz\.$/]
  ]
  // No database listens at this address: the commands must fail before they connect.
  const unreachable = { DATABASE_URL: 'postgres://127.0.0.1:1/plants' }
  for (const [args, line] of lines) {
    const { code, stdout, stderr } = await unmeasured.run(args, unreachable)
    const printed = { code, stdout, lines: stderr.split('\n').length }
    t.strictSame(printed, { code: 2, stdout: '', lines: 2 }, args.join(' '))
    t.match(stderr.trimEnd(), line)
  }
})

t.test('--help lists the commands, and token alone lists its subcommands', async (t) => {
  const help = await unmeasured.run(['--help'])
  t.match(help, { code: 0, stdout: /serve[^]*migrate[^]*token[^]*user[^]*import[^]*export/, stderr: '' })
  const token = await unmeasured.run(['token'])
  t.match(token, { code: 2, stdout: '', stderr: /create[^]*list[^]*revoke/ })
})

t.test('npx runs the program in a checkout and passes its options on', async (t) => {
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

t.test('the files of the image need DATABASE_URL', async (t) => {
  const { run } = await copyProgram(t.testdir())
  for (const args of [['serve'], ['token', 'list']]) {
    t.strictSame(await run(args, { DATABASE_URL: undefined }), {
      code: 1,
      stdout: '',
      stderr: 'DATABASE_URL is not set: expected a PostgreSQL database, ' +
        'such as postgres://plant_store:secret@localhost:5432/plant_store\n'
    })
  }
})

t.test('the start names the database without user and password', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const { hostname: host, port, pathname, username, password } = new URL(DATABASE_URL)
  const service = await unmeasured.serve(t, { DATABASE_URL, DRAIN_DELAY: '0' })
  const server = { host, port: Number(port), database: pathname.slice(1) }
  t.match(await service.logged('database'), { servers: [server] })
  t.notMatch(JSON.stringify(service.log), `${username}:${password}@`)
})

t.test('a wrong configuration ends a command with a line for each fault', async (t) => {
  const environment = { DATABASE_URL: 'mysql://localhost', PORT: '65536', MIGRATE: 'perhaps' }
  const { code, stdout, stderr } = await unmeasured.run(['serve'], environment)
  t.strictSame({ code, stdout }, { code: 1, stdout: '' })
  t.match(stderr, /^PORT: expected .*\nDATABASE_URL: expected .*\nMIGRATE: expected .*\n$/)
})

t.test('an unreachable database is reported in one line', async (t) => {
  const line = 'The database cannot be reached. connect ECONNREFUSED 127.0.0.1:1\n'
  const environment = { DATABASE_URL: 'postgres://127.0.0.1:1/plants' }
  t.strictSame(await unmeasured.run(['token', 'list'], environment), { code: 1, stdout: '', stderr: line })
})

const idle = `exists (
  select from pg_stat_activity where datname = current_database() and state = 'idle in transaction')`
const gone = `not ${idle.replace("and state = 'idle in transaction'", 'and pid <> pg_backend_pid()')}`

t.test('many plants come in and go out in every format', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const csv = join(folder, 'many.csv.gz')
  t.match(await unmeasured.run(['import', 'ann', file], { DATABASE_URL }),
    { code: 0, stderr: `${many} created, 0 existing, 0 rejected\n` })
  t.match(await unmeasured.run(['export', 'ann', csv], { DATABASE_URL }),
    { code: 0, stderr: `${many} exported\n` })
  t.match(await unmeasured.run(['import', 'bob', csv, '--chunk', '7001'], { DATABASE_URL }), { code: 0 })
  t.equal((await unmeasured.run(['export', 'bob'], { DATABASE_URL })).stdout, manyLines)
  t.equal(gunzipSync(await readFile(csv)).toString().split('\n').length, many + 2)
})

t.test('a killed import leaves nothing or its committed chunks', async (t) => {
  const whole = await startImport(t, unmeasured.start, [], ndjson(20_000))
  await until(whole.url, idle)
  whole.child.kill('SIGKILL')
  await whole.ended
  await until(whole.url, gone)
  t.equal(await countPlants(whole.url), 0)

  const chunks = await startImport(t, unmeasured.start, ['--chunk', '1000'], ndjson(3500))
  await until(chunks.url, '(select count(*) = 3000 from plants)')
  chunks.child.kill('SIGKILL')
  await chunks.ended
  await until(chunks.url, gone)
  t.equal(await countPlants(chunks.url), 3000)
  t.match(await unmeasured.run(['import', 'ann', file], { DATABASE_URL: chunks.url }),
    { code: 0, stderr: `${many - 3000} created, 3000 existing, 0 rejected\n` })
})
