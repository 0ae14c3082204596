import { mkdir, readdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import t from 'tap'
import { createDataDir } from '../../support/embedded.ts'
import { findChildren } from '../../support/processes.ts'
import { run, serve, unmeasured } from '../../support/program.ts'

const environmentOf = (DATA_DIR: string) => ({ DATABASE_URL: undefined, DATA_DIR, DRAIN_DELAY: '0' })

t.jobs = 2
const buffered = true

t.test('after a first start was killed halfway, the next one succeeds', { buffered: true }, async (t) => {
  const DATA_DIR = await createDataDir(t)
  const halfway = unmeasured.start(['serve'], environmentOf(DATA_DIR))
  while ((await readdir(DATA_DIR)).length === 0) await setTimeout(10)
  const [supervisor] = await findChildren(halfway.child.pid) as [number]
  // Kill the process group: dev/supervisor.ts and its PostgreSQL processes.
  process.kill(-supervisor, 'SIGKILL')
  const stderr = `DATABASE_URL is not set, and PostgreSQL did not start in ${DATA_DIR}: it ended\n`
  t.strictSame(await halfway.ended, { code: 1, stdout: '', stderr })
  t.match(await readdir(DATA_DIR), [/^new-/])

  t.match(await unmeasured.run(['token', 'create', 'alice'], environmentOf(DATA_DIR)), { code: 0 })
})

t.test('of two first starts, one serves and the other fails with one line', { buffered: true }, async (t) => {
  const DATA_DIR = await createDataDir(t)
  const starts = await Promise.allSettled([1, 2].map(() => serve(t, environmentOf(DATA_DIR))))
  const [service, ...others] = starts.flatMap((start) => start.status === 'fulfilled' ? [start.value] : [])
  t.strictSame(others, [])
  const reasons = starts.flatMap((start) => start.status === 'rejected' ? [start.reason.message] : [])
  const inUse = /^exited with 1 .* (lock file "postmaster\.pid" already exists|is in use by process \d+)\n$/
  t.match(reasons, [inUse])
  t.equal((await fetch(`${service?.address}/readyz`)).status, 200)
  service?.child.kill('SIGTERM')
  t.strictSame(await service?.exited, [0, null])
  t.strictSame(await readdir(DATA_DIR), ['postgresql', 'server.json'])
})

t.test('a DATA_DIR that is a file fails with one line', { buffered: true }, async (t) => {
  const file = join(await createDataDir(t), 'file')
  await writeFile(file, '')
  const { code, stdout, stderr } = await run(['serve'], environmentOf(file))
  t.strictSame({ code, stdout }, { code: 1, stdout: '' })
  t.match(stderr, /^DATABASE_URL is not set, and PostgreSQL did not start in \S+: Error: EEXIST: .*\n$/)
})

const skip = process.getuid?.() !== 0 && 'PostgreSQL runs as another user only under root'
t.test('a DATA_DIR that PostgreSQL may not enter fails with one line', { buffered, skip }, async (t) => {
  const closed = join(await createDataDir(t), 'closed')
  await mkdir(closed, { mode: 0o700 })
  const { code, stdout, stderr } = await unmeasured.run(['serve'], environmentOf(join(closed, 'data')))
  t.strictSame({ code, stdout }, { code: 1, stdout: '' })
  t.match(stderr, /^DATABASE_URL is not set.*: could not access directory .*: Permission denied/)
  t.match(stderr, /\(started by root, PostgreSQL runs as the user postgres\)\n$/)
  t.strictSame(await readdir(join(closed, 'data')), [])
})
