import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir, readlink, stat, writeFile } from 'node:fs/promises'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import { createDatabase, openSession, sql } from '../../support/database.ts'
import { asShipped, program, unmeasured } from '../../support/program.ts'
import { ndjson, until } from '../../support/transfer.ts'

const { run, start } = unmeasured
const root = join(import.meta.dirname, '../../..')
const folder = t.testdir()
const many = ndjson(20_000)
const file = join(folder, 'many.ndjson')
await writeFile(file, many)
const unreachable = { DATABASE_URL: 'postgres://127.0.0.1:1/plants' }

t.test('bad arguments get one line and exit code 2', async (t) => {
  const lines: Array<[string[], RegExp]> = [
    [['serv'], /^error: unknown command 'serv' \(Did you mean serve\?\)\n$/],
    [['token', 'create', 'a\nb'], /^error: .*'a b' is invalid .* A user name is 1 to 255 printable .*\n$/],
    [['token', 'revoke', 'x', '--user', 'alice'], /^error: expected either the id of a token or --user\n$/],
    [['import', 'a\nb'], /^error: expected either --all or a user.*\n$/],
    [['export', '--all', 'alice', 'plants.csv'], /^error: expected either --all or a user.*\n$/],
    [['import', 'alice', '--format', 'xml'], /^error: .* are ndjson, csv, ndjson\.gz, csv\.gz\.\n$/]
  ]
  // The commands must fail before they connect.
  for (const [args, stderr] of lines) {
    t.match(await run(args, unreachable), { code: 2, stdout: /^$/, stderr }, args.join(' '))
  }
})

t.test('npx runs the program in a checkout and passes its options on', async (t) => {
  const env = { ...process.env, npm_config_cache: t.testdir() }
  const words = [...asShipped, 'npx', 'plant-store', '--version']
  t.equal((await promisify(execFile)('env', words, { env, cwd: root })).stdout, `${manifest.version}\n`)
})

t.test('the start names the database without user and password', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const { hostname: host, port, pathname, username, password } = new URL(DATABASE_URL)
  const service = await unmeasured.serve(t, { DATABASE_URL, DRAIN_DELAY: '0' })
  t.match(await service.logged('database'),
    { servers: [{ host, port: Number(port), database: pathname.slice(1) }] })
  t.notMatch(JSON.stringify(service.log), `${username}:${password}@`)
})

const inSession = (condition: string) =>
  `exists (select from pg_stat_activity where datname = current_database() and ${condition})`

t.test('an import that loses its connection in the commit says that the outcome is unknown', async (t) => {
  const url = await createDatabase(t)
  const client = await openSession(t, url, `create function wait () returns trigger language plpgsql as
      $$ begin perform pg_advisory_xact_lock(1); return null; end $$;
    create constraint trigger wait after insert on plants deferrable initially deferred
      for each row execute function wait();
    select pg_advisory_lock(1)`)
  const { child, ended } = start(['import', 'ann'], { DATABASE_URL: url })
  child.stdin?.end(ndjson(1))
  await until(url, "exists (select from pg_locks where locktype = 'advisory' and not granted)")
  await client.query("select pg_terminate_backend(pid) from pg_stat_activity where query = 'commit'")
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
  // Only the server's confirmation is missing when the program has closed the complete file.
  while (!await hasWritten(child.pid, 'lost')) await delay(10)
  near.destroy()
  t.match(await ended, { code: 1, stderr: 'Connection terminated unexpectedly\n' })
  t.notOk((await readdir(folder)).some((name) => name.startsWith('lost')))
})

/** Whether a process has written to a file in `folder` and closed it. `start` begins the name of the file. */
async function hasWritten (pid: number | undefined, start: string): Promise<boolean> {
  const name = (await readdir(folder)).find((name) => name.startsWith(start))
  if (name === undefined || (await stat(join(folder, name))).size === 0) return false
  const descriptors = `/proc/${pid}/fd`
  const paths = (await readdir(descriptors)).map((name) => readlink(join(descriptors, name)).catch(() => ''))
  return !(await Promise.all(paths)).some((path) => path.includes(name))
}

t.test('an export is one snapshot and blocks nothing', async (t) => {
  const copying = inSession("query like 'copy (%'")
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
  t.equal(text, many)
})
