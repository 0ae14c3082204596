import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir, readFile, readlink, rm, writeFile } from 'node:fs/promises'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t from 'tap'
import { createDatabase, sql } from '../../support/database.ts'
import { asShipped, program, unmeasured } from '../../support/program.ts'
import { ndjson, onTerminal, startImport, until } from '../../support/transfer.ts'

const { run, start } = unmeasured
const folder = t.testdir()
const many = 20_000
const manyLines = ndjson(many)
const file = join(folder, 'many.ndjson')
await writeFile(file, manyLines)

const copying = `exists (
  select from pg_stat_activity where datname = current_database() and query like 'copy (%')`

t.test('an import that loses its connection in the commit says that the outcome is unknown', async (t) => {
  const { url, child, ended } = await startImport(t, start, [], ndjson(1))
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
    far.on('data', (chunk: Buffer) => {
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
  await run(['import', 'ann', file], { DATABASE_URL })
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
