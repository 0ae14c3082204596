import { execFile, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readdir, readlink, stat } from 'node:fs/promises'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import { createDatabase, openSession, sql, waitingForLocks } from '../../support/database.ts'
import { findChildren, hasEnded } from '../../support/processes.ts'
import { asShipped, program, unmeasured } from '../../support/program.ts'
import { countPlants, ndjson, until } from '../../support/transfer.ts'
import { openProxy } from '../faults/proxy.ts'

const isCopying = `exists (select from pg_stat_activity
  where datname = current_database() and query like 'copy (%')`

t.test('npx runs the program in a checkout and passes its options on', async (t) => {
  const cwd = join(import.meta.dirname, '../../..')
  const words = [...asShipped, `npm_config_cache=${t.testdir()}`, 'npx', 'plant-store', '--version']
  t.equal((await promisify(execFile)('env', words, { cwd })).stdout, `${manifest.version}\n`)
})

t.test('an import that loses its connection in the commit says that the outcome is unknown', async (t) => {
  const url = await createDatabase(t)
  const client = await openSession(t, url, `create function wait () returns trigger language plpgsql as
      $$ begin perform pg_advisory_xact_lock(1); return null; end $$;
    create constraint trigger wait after insert on plants deferrable initially deferred
      for each row execute function wait();
    select pg_advisory_lock(1)`)
  const { child, ended } = unmeasured.start(['import', 'ann'], { DATABASE_URL: url })
  child.stdin.end(ndjson(1))
  const end = `select pg_terminate_backend(pid) from (${waitingForLocks}) as waiting`
  while ((await client.query(end)).rowCount === 0) await delay(10)
  const counts = '0 created, 0 existing, 0 rejected; the outcome of the last commit is unknown: import again'
  const stderr = new RegExp(`^terminating connection.*\\n${counts}\\nThe log of the database has no line`)
  t.match(await ended, { code: 1, stderr })
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
  const folder = t.testdir()
  const words = ['export', 'ann', join(folder, 'lost.ndjson')]
  const { child, ended } = unmeasured.start(words, { DATABASE_URL: url.href })
  const near = await copied.promise
  // Only the server's confirmation is missing when the program has closed the complete file.
  while (!await hasWritten(child.pid, folder)) await delay(10)
  near.destroy()
  t.match(await ended, { code: 1, stderr: 'Connection terminated unexpectedly\n' })
  t.strictSame(await readdir(folder), [])
})

t.test('Ctrl-C ends an import whose database is frozen, and the report is right', async (t) => {
  const url = await createDatabase(t)
  // The import waits for lines, in or between transactions, or for the server.
  for (const [options, lines] of [
    ['--chunk 10', 20], ['--chunk 10', 25], ['--chunk 1000', 200_000]
  ] as const) {
    await sql(url, 'delete from plants')
    const proxy = await openProxy(t, url)
    const words = ['import', 'ann', ...options.split(' ')]
    const { child, ended } = unmeasured.start(words, { DATABASE_URL: proxy.url })
    child.stdin.on('error', () => {}).write(ndjson(lines))
    await until(url, '(select count(*) >= 20 from plants)')
    proxy.silence()
    child.kill('SIGINT')
    const { code, stderr } = await ended
    const [, created, note] =
      /^interrupted\n(\d+) created, 0 existing, 0 rejected; (.*)\n$/.exec(stderr) ?? []
    t.equal(code, 130)
    t.ok(Number(created) === await countPlants(url) || note?.startsWith('the outcome'), stderr)
    proxy.cut()
  }
})

// Without privileges, not even root may create a PID namespace.
const isAllowed = spawnSync('unshare', ['--pid', '--fork', 'true']).status === 0
const skip = !isAllowed && 'this process may create no PID namespace'
t.test('process 1 of a container ends on a signal, from the first moment on', { skip }, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  await sql(DATABASE_URL, "insert into plants (owner, id, name) values ('ann', 1, 'Fern')")
  for (const name of ['SIGINT', 'SIGTERM'] as const) {
    for (const words of [['user', 'erase', 'ann', '--yes'], ['import', 'ann'], ['serve']]) {
      const child = spawn('unshare', ['--pid', '--fork', '--kill-child', 'env', ...asShipped,
        `DATABASE_URL=${DATABASE_URL}`, 'PORT=0', ...program, ...words])
      // Node itself needs some milliseconds before it can listen to signals.
      while (!hasEnded(child)) {
        const [first] = await findChildren(child.pid).catch(() => [])
        // `kill` fails if the process has ended meanwhile.
        spawn('kill', ['-s', name.slice(3), String(first)])
        await delay(10)
      }
      // A signal during Node's start may end process 1 directly: a thread blocks the signal for a moment.
      const end = child.signalCode ?? child.exitCode
      // The service stops in its own way if it gets the first signal late.
      t.ok(end === 130 || end === name || words[0] === 'serve', `${words[0]} ${name} ${end}`)
    }
  }
  t.equal(await countPlants(DATABASE_URL), 1)
})

t.test('SIGTERM ends an export whose database is frozen, or whose output nobody reads', async (t) => {
  const url = await createDatabase(t)
  await sql(url, `insert into plants (owner, id, name)
    select 'ann', n, repeat('n', 999) from generate_series(1, 99999) n`)
  const folder = t.testdir()
  for (const [isFrozen, ...file] of [[true, join(folder, 'plants.csv')], [true], [false]] as const) {
    const proxy = await openProxy(t, url)
    if (isFrozen) proxy.slow(10)
    const words = ['export', 'ann', ...file]
    const child = spawn('env', [...asShipped, `DATABASE_URL=${proxy.url}`, ...program, ...words])
    let stderr = ''
    child.stderr.setEncoding('utf8').on('data', (chunk) => { stderr += chunk })
    await until(url, isCopying)
    if (isFrozen) proxy.silence()
    child.kill('SIGTERM')
    t.strictSame(await once(child, 'exit'), [130, null])
    t.equal(stderr, 'interrupted\n')
    t.strictSame(await readdir(folder), [])
    proxy.cut()
    await until(url, `not ${isCopying}`)
  }
})

/** Whether a process has written to the only file in `folder` and closed it. */
async function hasWritten (pid: number | undefined, folder: string): Promise<boolean> {
  const [name] = await readdir(folder)
  if (name === undefined || (await stat(join(folder, name))).size === 0) return false
  const descriptors = `/proc/${pid}/fd`
  const paths = (await readdir(descriptors)).map((name) => readlink(join(descriptors, name)).catch(() => ''))
  return !(await Promise.all(paths)).some((path) => path.includes(name))
}

t.test('an export is one snapshot and blocks nothing', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  await sql(DATABASE_URL, `insert into plants (owner, id, name, tag)
    select 'ann', n, 'plant ' || n, 'indoor' from generate_series(0, 19999) n`)
  // The export blocks, because the test reads the export's output only after the delete.
  const child = spawn('env', [...asShipped, `DATABASE_URL=${DATABASE_URL}`, ...program, 'export', 'ann'])
  await until(DATABASE_URL, isCopying)
  await sql(DATABASE_URL, 'delete from plants where id % 2 = 0')
  let text = ''
  child.stdout.setEncoding('utf8').on('data', (chunk) => { text += chunk })
  await once(child, 'close')
  t.equal(text, ndjson(20_000))
})
