// Runs some test files on each supported version of PostgreSQL, except 18, the version of the other suites.
import { execFile } from 'node:child_process'
import { readdir } from 'node:fs/promises'
import { promisify } from 'node:util'
import t from 'tap'
import { migrate } from '../../../src/database/migrate.ts'
import { findImage, openNetwork, root, run, until } from '../container/support.ts'
import { sql } from '../../support/database.ts'
import { missing } from './support.ts'

// These files test code that contains SQL.
const ofPlants = (await readdir(`${root}/test/plants`)).map((name) => `plants/${name}`)
const files = [...ofPlants, 'commands/commands.test.ts', 'system/commands/migrate.test.ts']

/** Returns the official image, or a substitute for version 15. Returns undefined if there is neither. */
async function imageOf (version: number): Promise<string | undefined> {
  const name = `postgres:${version}`
  if (await missing(name) === false) return name
  if (version !== 15) return undefined
  return findImage('postgres:18', 'postgres --version | grep -q " 15"').catch(() => undefined)
}

for (const version of [15, 16, 17]) {
  const image = await imageOf(version)
  const skip = image === undefined && `POSTGRESQL ${version} IS NOT TESTED: there is no image of this version`
  if (skip) t.comment(skip)

  const title = `tests of plants, tokens and migrations pass on PostgreSQL ${version}`
  await t.test(title, { skip }, async (t) => {
    const { start } = await openNetwork(t)
    const server = await start('--publish=127.0.0.1::5432', '--env=POSTGRES_PASSWORD=secret', image as string)
    const url = new URL(`postgres://postgres:secret@${await run('port', server, '5432/tcp')}/postgres`)
    const askVersion = () => sql(url.href, 'show server_version').catch(() => [])
    const [row] = await until(askVersion, (rows) => rows.length > 0)
    t.match(row?.server_version, new RegExp(`^${version}\\b`))
    const env = { ...process.env, TAP_TIMEOUT: '300', TEST_DATABASE_URL: url.href }
    await sql(url.href, 'create database plants_template')
    url.pathname = '/plants_template'
    await migrate(url.href, 'up')
    await Promise.all(files.map(async (file) => {
      const options = { cwd: root, env, maxBuffer: 2 ** 26 }
      const done = promisify(execFile)(process.execPath, [`test/${file}`], options)
      await t.resolves(done, file)
      await done.catch(({ stdout }) => t.comment(stdout))
    }))
  })
}
