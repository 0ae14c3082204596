import { mkdtempDisposable, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from '../../support/database.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import type { Postgres } from './postgres.ts'
import { createRandom } from './random.ts'
import type { Report } from './report.ts'

const [rounds, plants, chunk] = [20, 400_000, 1000]
const sessions = `select from pg_stat_activity
  where backend_type = 'client backend' and datname = current_database() and pid <> pg_backend_pid()`

/** Kills an import or PostgreSQL at a random moment. A second import must then store the missing plants. */
export async function imports (_scope: Scope, postgres: Postgres, seed: number): Promise<Report> {
  const random = createRandom(seed)
  const environment = { DATABASE_URL: postgres.url }
  await using folder = await mkdtempDisposable(join(tmpdir(), 'plant-store-imports-'))
  const file = join(folder.path, 'plants.ndjson')
  await writeFile(file, Array.from({ length: plants }, (_, id) => `{"id":${id},"name":"plant ${id}"}\n`))
  const rows: Report['rows'] = []
  const breaches: string[] = []
  for (let round = 0; round < rounds; round++) {
    const inChunks = random.chance(0.5)
    const victim = random.pick(['import', 'server'])
    const user = `import-${round}`
    const complain = (text: string) => breaches.push(`${user} (${victim}, chunks: ${inChunks}): ${text}`)
    const words = ['import', user, file, ...inChunks ? ['--chunk', String(chunk)] : []]
    const { child, ended } = unmeasured.start(words, environment)
    // Wait at most 2.5 s. An import of 400,000 plants takes about 2 s, or more on a busy machine.
    await delay(random.below(2500))
    if (victim === 'import') child.kill('SIGKILL')
    else await postgres.kill()
    const { code, stderr } = await ended
    if (victim === 'server') await postgres.start()
    const acknowledged = Number(/stored up to line (\d+)/.exec(stderr)?.[1] ?? (code === 0 ? plants : 0))
    // PostgreSQL may still execute the last statement of a killed import. Wait until the session ends.
    while ((await sql(postgres.url, sessions)).length > 0) await delay(10)
    const { length: found } = await sql(postgres.url, 'select from plants where owner = $1', [user])
    if (found < acknowledged) complain(`${acknowledged} acknowledged, ${found} stored`)
    if (!inChunks && found !== 0 && found !== plants) complain(`${found} of one transaction stored`)
    if (inChunks && found % chunk !== 0) complain(`${found} is no number of whole chunks`)
    const again = await unmeasured.run(['import', user, file], environment)
    const summary = `${plants - found} created, ${found} existing, 0 rejected\n`
    if (again.code !== 0 || again.stderr !== summary) complain(`the next import: ${again.stderr}`)
    rows.push([victim, inChunks ? 'chunks' : 'one transaction', acknowledged, found])
  }
  const head = ['killed', 'committed in', 'acknowledged', 'stored']
  return { title: 'Imports that are killed', head, rows, breaches, misses: [] }
}
