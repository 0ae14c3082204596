// Other versions of PostgreSQL: the oldest that is supported, and one before the newest, which all other tests have.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import t from 'tap'
import { migrate } from '../../src/database/migrate.ts'
import { findImage, openNetwork, root, run, until } from '../container/support.ts'
import { sql } from '../support/database.ts'
import { missing } from './support.ts'

t.setTimeout(300_000)

// Whatever has SQL of its own.
const files = ['plants/lists', 'plants/batches', 'plants/isolation', 'plants/failures', 'plants/joined-lists', 'plants/model',
  'access/lookups', 'access/revocation', 'commands/tokens', 'database/refusals', 'program/migrate']

/** The official image; where that can't be had and there is one, Debian's package in the image of the newest. */
async function imageOf (version: number): Promise<string | undefined> {
  const name = `postgres:${version}`
  if (await missing(name) === false) return name
  return version === 15 ? findImage('postgres:18', 'postgres --version | grep -q " 15"').catch(() => undefined) : undefined
}

for (const version of [15, 17]) {
  const image = await imageOf(version)
  const left = `PostgreSQL ${version} IS NOT TESTED: there is no image of it`
  if (image === undefined) t.comment(left)

  await t.test(`plants, tokens and migrations are the same on PostgreSQL ${version}`, { skip: image === undefined && left }, async (t) => {
    const { start } = await openNetwork(t)
    const server = await start('--publish=127.0.0.1::5432', '--env=POSTGRES_PASSWORD=secret', image as string)
    const url = new URL(`postgres://postgres:secret@${await run('port', server, '5432/tcp')}/postgres`)
    const [row] = await until(() => sql(url.href, 'show server_version').catch(() => []), (rows) => rows.length > 0)
    t.match(row?.server_version, new RegExp(`^${version}\\b`))
    const env = { ...process.env, TEST_DATABASE_URL: url.href }
    await sql(url.href, 'create database plants_template')
    url.pathname = '/plants_template'
    await migrate(url.href, 'up')
    for (const file of files) {
      const done = promisify(execFile)(process.execPath, [`test/${file}.test.ts`], { cwd: root, env, maxBuffer: 2 ** 26 })
      await t.resolves(done, file)
      await done.catch(({ stdout }) => t.comment(stdout))
    }
  })
}
