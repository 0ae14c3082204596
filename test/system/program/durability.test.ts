// Tests the warning about settings of PostgreSQL without which a crash may lose acknowledged writes.
import t from 'tap'
import { startEmbedded } from '../../../dev/embedded-postgres.ts'
import { durabilitySettings } from '../../../src/telemetry-events.ts'
import { sql } from '../../support/database.ts'
import { createDataDir } from '../../support/embedded.ts'
import { unmeasured } from '../../support/program.ts'

// Use an own server with PostgreSQL's default settings: the server of `npm test` has fsync off.
const { url, close } = await startEmbedded(await createDataDir(t))
t.teardown(close)

/** After the statements, the settings in `off` are off. */
const changes: Array<[statements: string[], off: readonly string[]]> = [
  [[], []],
  // The service is a client with this role, so it must notice the setting of the role.
  [['alter role current_user set synchronous_commit = off'], ['synchronous_commit']],
  [['alter system set fsync = off', 'alter system set full_page_writes = off', 'select pg_reload_conf()'],
    durabilitySettings]
]

for (const [statements, off] of changes) {
  await t.test(`log and metrics name the settings that are off: ${off.join() || 'none'}`, async (t) => {
    for (const statement of statements) await sql(url, statement)
    const { log } = await unmeasured.serve(t, { DATABASE_URL: url, METRICS_PORT: '0' })
    const warned = log.flatMap(({ level, off, msg }) => off === undefined ? [] : [{ level, off, msg }])
    const msg = 'a crash of the database may lose acknowledged writes'
    t.strictSame(warned, off.length === 0 ? [] : [{ level: 'warn', off: [...off], msg }])
    const metrics = await (await fetch(String(log.find(({ msg }) => msg === 'metrics')?.url))).text()
    t.strictSame(metrics.match(/^plant_store_unsafe_setting.*/gm), durabilitySettings.map((setting) =>
      `plant_store_unsafe_setting{setting="${setting}"} ${Number(off.includes(setting))}`))
  })
}
