// Tests the warning about settings of PostgreSQL without which a crash may lose acknowledged writes.
import t from 'tap'
import { startEmbedded } from '../../../dev/embedded-postgres.ts'
import { durabilitySettings } from '../../../src/events.ts'
import { sql } from '../../support/database.ts'
import { createDataDir } from '../../support/embedded.ts'
import { unmeasured } from '../../support/program.ts'

const { serve } = unmeasured
// Use an own server with PostgreSQL's default settings: the server of `npm test` has fsync off.
const { url, close } = await startEmbedded(await createDataDir(t))
t.teardown(close)

/** Starts and stops the service. Returns its warnings about settings, and the series of its metric. */
async function startAndStop () {
  const service = await serve(t, { DATABASE_URL: url, METRICS_PORT: '0', DRAIN_DELAY: '0' })
  const warned = service.log.filter(({ off }) => off !== undefined)
  const metrics = String(service.log.find(({ msg }) => msg === 'metrics')?.url)
  const text = await (await fetch(metrics)).text()
  const series = text.matchAll(/^plant_store_unsafe_setting\{setting="(\w+)"\} (\d)$/gm)
  service.child.kill('SIGTERM')
  await service.exited
  return { warned, series: Object.fromEntries([...series].map(([, setting, value]) => [setting, value])) }
}

await t.test('with the default settings there is no warning', async (t) => {
  t.strictSame(await startAndStop(), {
    warned: [],
    series: { fsync: '0', full_page_writes: '0', synchronous_commit: '0' }
  })
})

const off = {
  fsync: ['alter system set fsync = off', 'select pg_reload_conf()'],
  full_page_writes: ['alter system set full_page_writes = off', 'select pg_reload_conf()'],
  // The service is a client with this role, so it must notice the setting of the role.
  synchronous_commit: ['alter role current_user set synchronous_commit = off']
}

await t.test('one line of the log and the metrics name all settings that are off', async (t) => {
  await sql(url, off.synchronous_commit.join())
  t.match(await startAndStop(), {
    warned: [{
      level: 'warn', off: ['synchronous_commit'], msg: 'a crash of the database may lose acknowledged writes'
    }],
    series: { fsync: '0', full_page_writes: '0', synchronous_commit: '1' }
  })
  for (const statement of [...off.fsync, ...off.full_page_writes]) await sql(url, statement)
  const { warned, series } = await startAndStop()
  t.match(warned, [{ off: [...durabilitySettings] }])
  t.equal(warned.length, 1)
  t.strictSame(series, { fsync: '1', full_page_writes: '1', synchronous_commit: '1' })
})
