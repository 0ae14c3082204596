// Runs some test files on each supported version of PostgreSQL, except 18, the version of the other suites.
import { execFile } from 'node:child_process'
import { readdir } from 'node:fs/promises'
import { promisify } from 'node:util'
import t from 'tap'
import { findImage, openNetwork, root, run, until } from '../container/support.ts'
import { sql } from '../../support/database.ts'
import { createTemplate } from '../../support/test-server.ts'
import { missing } from './support.ts'

// These files test code that contains SQL.
const ofPlants = (await readdir(`${root}/test/plants`)).map((name) => `plants/${name}`)
const files = [
  ...ofPlants, 'commands/commands.test.ts', 'system/database/plans.test.ts', 'system/commands/migrate.test.ts'
]

// Version 15 has a substitute for the official image.
const findSubstitute = () =>
  findImage('postgres:18', 'postgres --version | grep -q " 15"').catch(() => undefined)

for (const version of [15, 16, 17]) {
  const name = `postgres:${version}`
  const image = await missing(name) === false ? name : version === 15 ? await findSubstitute() : undefined
  const skip = image === undefined && `POSTGRESQL ${version} IS NOT TESTED: there is no image of this version`
  if (skip) t.comment(skip)
  await t.test(`plants, tokens and migrations work on PostgreSQL ${version}`, { skip }, async (t) => {
    const { start } = await openNetwork(t)
    const server = await start('--publish=127.0.0.1::5432', '--env=POSTGRES_PASSWORD=secret', image as string)
    const url = `postgres://postgres:secret@${await run('port', server, '5432/tcp')}/postgres`
    const askVersion = () => sql(url, 'show server_version').catch(() => [])
    const [row] = await until(askVersion, (rows) => rows.length > 0)
    t.match(row?.server_version, new RegExp(`^${version}\\b`))
    await createTemplate({ isOurs: true, url, close: async () => {} })
    const env = { ...process.env, TAP_TIMEOUT: '300', TEST_DATABASE_URL: url }
    const options = { cwd: root, env, maxBuffer: 2 ** 26 }
    await Promise.all(files.map(async (file) => {
      const done = promisify(execFile)(process.execPath, [`test/${file}`], options)
      await t.resolves(done, file)
      await done.catch(({ stdout }) => t.comment(stdout))
    }))
  })
}
