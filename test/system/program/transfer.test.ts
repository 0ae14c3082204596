import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir, readFile, readlink, rm, writeFile } from 'node:fs/promises'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import { gunzipSync } from 'node:zlib'
import pg from 'pg'
import t, { type Test } from 'tap'
import { createDatabase, sql } from '../../support/database.ts'
import { asShipped, program, run, start, unmeasured } from '../../support/program.ts'
import { onTerminal, until } from '../../support/transfer.ts'

const folder = t.testdir()
const lines = (count: number) =>
  Array.from({ length: count }, (_, id) => `{"id":${id},"name":"plant ${id}","tag":"indoor"}\n`).join('')
const many = 20_000
const manyLines = lines(many)
const file = join(folder, 'many.ndjson')
await writeFile(file, manyLines)

const count = async (url: string) => Number((await sql(url, 'select count(*) from plants'))[0]?.count)
const idle = `exists (
  select from pg_stat_activity where datname = current_database() and state = 'idle in transaction')`
const copying = `exists (
  select from pg_stat_activity where datname = current_database() and query like 'copy (%')`
const gone = `not ${idle.replace("and state = 'idle in transaction'", 'and pid <> pg_backend_pid()')}`

/** Starts an import, writes `text` to its standard input, and keeps the input open. */
async function startImport (t: Test, options: string[], text: string) {
  const url = await createDatabase(t)
  const { child, ended } = start(['import', 'ann', ...options], { DATABASE_URL: url })
  // A killed import does not read the rest of its input.
  child.stdin?.on('error', () => {})
  child.stdin?.write(text)
  return { url, child, ended }
}

t.test('many plants come in and go out in every format', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const csv = join(folder, 'many.csv.gz')
  t.match(await unmeasured.run(['import', 'ann', file], { DATABASE_URL }),
    { code: 0, stderr: `${many} created, 0 existing, 0 rejected\n` })
  t.match(await unmeasured.run(['export', 'ann', csv], { DATABASE_URL }),
    { code: 0, stderr: `${many} exported\n` })
  t.match(await unmeasured.run(['import', 'bob', csv, '--chunk', '7001'], { DATABASE_URL }), { code: 0 })
  t.equal((await run(['export', 'bob'], { DATABASE_URL })).stdout, manyLines)
  t.equal(gunzipSync(await readFile(csv)).toString().split('\n').length, many + 2)

  // Use bash, because some versions of sh have no pipefail.
  const head = `set -o pipefail; ${program.join(' ')} export ann | head -1`
  const env = { ...process.env, DATABASE_URL }
  const { stdout, stderr } = await promisify(execFile)('bash', ['-c', head], { env })
  t.strictSame([stdout, stderr], [lines(1), ''], 'a reader that ends early is no error')

  const shown = await onTerminal(['import', 'cat', file, '--rate', '40000'], { DATABASE_URL })
  const last = /\d+ lines, \d+ a second, \d+ s left.*20000 created, 0 existing, 0 rejected\r\n$/s
  t.match(shown, { code: 0, shown: last })
})

t.test('a killed import leaves nothing or its committed chunks, and the next one completes it', async (t) => {
  const whole = await startImport(t, [], lines(5000))
  await until(whole.url, idle)
  whole.child.kill('SIGKILL')
  await whole.ended
  await until(whole.url, gone)
  t.equal(await count(whole.url), 0)

  const chunks = await startImport(t, ['--chunk', '1000'], lines(3500))
  await until(chunks.url, '(select count(*) = 3000 from plants)')
  chunks.child.kill('SIGKILL')
  await chunks.ended
  await until(chunks.url, gone)
  t.equal(await count(chunks.url), 3000)
  t.match(await unmeasured.run(['import', 'ann', file], { DATABASE_URL: chunks.url }),
    { code: 0, stderr: `${many - 3000} created, 3000 existing, 0 rejected\n` })
})

t.test('Ctrl-C ends an import, and reports what is stored', async (t) => {
  const { url, child, ended } = await startImport(t, ['--chunk', '1000'], lines(2500))
  await until(url, '(select count(*) = 2000 from plants)')
  child.kill('SIGINT')
  t.strictSame(await ended, {
    code: 130,
    stdout: '',
    stderr: 'interrupted\n2000 created, 0 existing, 0 rejected; stored up to line 2000\n'
  })
  t.equal(await count(url), 2000)
})

t.test('an import that loses its connection in the commit says that the outcome is unknown', async (t) => {
  const { url, child, ended } = await startImport(t, [], lines(1))
  const client = new pg.Client(url)
  await client.connect()
  await client.query(`create function wait () returns trigger language plpgsql as
      $$ begin perform pg_advisory_xact_lock(1); return null; end $$;
    create constraint trigger wait after insert on plants deferrable initially deferred
      for each row execute function wait();
    select pg_advisory_lock(1)`)
  child.stdin?.end()
  await until(url, "exists (select from pg_locks where locktype = 'advisory' and not granted)")
  await client.query("select pg_terminate_backend(pid) from pg_stat_activity where query = 'commit'")
  await client.end()
  const counts = '0 created, 0 existing, 0 rejected; the outcome of the last commit is unknown: import again'
  t.match(await ended, { code: 1, stderr: new RegExp(`^terminating connection.*\\n${counts}\\n$`) })
})

t.test('an export that loses its connection before the server confirms it leaves no file', async (t) => {
  const url = new URL(await createDatabase(t))
  await sql(url.href, "insert into plants (owner, id, name) values ('ann', 1, 'Fern')")
  const { port, hostname } = url
  const copyDone = Buffer.from('c\0\0\0\x04')
  const copied = Promise.withResolvers<Socket>()
  const proxy = createServer((near) => {
    const far = connect(Number(port), hostname)
    near.pipe(far).on('error', () => {})
    far.on('data', (chunk) => {
      const at = chunk.indexOf(copyDone)
      if (at === -1) near.write(chunk)
      else near.write(chunk.subarray(0, at + copyDone.length), () => copied.resolve(near))
    })
  }).listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  t.teardown(() => proxy.close())
  url.host = `127.0.0.1:${(proxy.address() as AddressInfo).port}`
  const { child, ended } = start(['export', 'ann', join(folder, 'lost.ndjson')], { DATABASE_URL: url.href })
  const near = await copied.promise
  // Wait until the program has closed the complete file. Only the server's confirmation is missing.
  while (await lengthOf('lost.ndjson') === 0 || await hasOpen(child.pid, 'lost.ndjson')) await delay(10)
  near.destroy()
  t.match(await ended, { code: 1, stderr: 'Connection terminated unexpectedly\n' })
  t.notOk((await readdir(folder)).some((name) => name.startsWith('lost')))
})

/** Returns 0 if no file in `folder` has a name that starts with `start`. */
async function lengthOf (start: string): Promise<number> {
  const name = (await readdir(folder)).find((name) => name.startsWith(start))
  return name === undefined ? 0 : (await readFile(join(folder, name))).length
}

async function hasOpen (pid: number | undefined, file: string): Promise<boolean> {
  const descriptors = `/proc/${pid}/fd`
  const paths = (await readdir(descriptors)).map((name) => readlink(join(descriptors, name)).catch(() => ''))
  return (await Promise.all(paths)).some((path) => path.includes(file))
}

t.test('an export is one snapshot and blocks nothing; Ctrl-C leaves no file', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  await unmeasured.run(['import', 'ann', file], { DATABASE_URL })
  // The export blocks, because the test reads the export's output only after the delete.
  const env = { ...process.env, DATABASE_URL }
  const child = spawn('env', [...asShipped, ...program, 'export', 'ann'], { env })
  await until(DATABASE_URL, copying)
  await sql(DATABASE_URL, 'delete from plants where id % 2 = 0')
  let text = ''
  child.stdout.setEncoding('utf8').on('data', (chunk) => { text += chunk })
  await once(child, 'close')
  t.equal(text, manyLines)

  const out = join(folder, 'out.ndjson.gz')
  await sql(DATABASE_URL, `insert into plants (owner, id, name)
    select owner, id + 100000 * n, name from plants, generate_series(1, 21) n`)
  const shown = await onTerminal(['export', '--all', out], { DATABASE_URL })
  t.match(shown, { code: 0, shown: /\d+ lines, \d+ a second.*220000 exported\r\n$/s })
  await rm(out)
  const { child: export_, ended } = start(['export', '--all', out], { DATABASE_URL })
  await until(DATABASE_URL, copying)
  export_.kill('SIGINT')
  t.match(await ended, { code: 130, stderr: 'interrupted\n' })
  t.strictSame((await readdir(folder)).filter((name) => name.startsWith('out')), [])
})

t.test('without a database an import fails in one line', async (t) => {
  t.strictSame(await run(['import', 'ann', file], { DATABASE_URL: 'postgres://127.0.0.1:1/plants' }),
    { code: 1, stdout: '', stderr: 'The database cannot be reached. connect ECONNREFUSED 127.0.0.1:1\n' })
})
