// Measures how fast a million plants are imported, by the service's command and by psql.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createWriteStream } from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import { pipeline } from 'node:stream/promises'
import { table } from '../test/support/table.ts'
import { found, service } from './contenders.ts'
import { createDatabase, folder, interrupted, withClient, type Postgres } from './running.ts'
import { spread } from './statistics.ts'

const plants = 1_000_000
const [ndjson, csv] = [join(folder, 'plants.ndjson'), join(folder, 'plants.csv')]

function * lines (write: (id: number, name: string) => string) {
  for (let id = 1; id <= plants; id++) yield `${write(id, `Monstera deliciosa ${id}`)}\n`
}

async function writeFiles () {
  await pipeline(Readable.from(lines((id, name) => JSON.stringify({ id, name, tag: 'indoor' }))),
    createWriteStream(ndjson))
  const file = createWriteStream(csv)
  file.write('id,name,tag\n')
  await pipeline(Readable.from(lines((id, name) => `${id},${name},indoor`)), file)
}

/** Runs a command. Returns the imported plants a second. */
async function importWith ([program = '', ...args]: string[], url: string): Promise<number> {
  const began = performance.now()
  const env = { ...process.env, ...service.env, DATABASE_URL: url }
  const child = spawn(program, args, { env, stdio: ['ignore', 'ignore', 'pipe'], signal: interrupted })
  const [errors, [code]] = await Promise.all([text(child.stderr), once(child, 'exit')])
  if (code !== 0) throw new Error(`${program} ${args.join(' ')}: ${errors}`)
  return plants / (performance.now() - began) * 1000
}

export async function compareImports (postgres: Postgres, rounds: number): Promise<string> {
  const url = postgres.url('imports')
  await createDatabase(url)
  await writeFiles()
  const commands = {
    '`import`, NDJSON': [...service.command, 'import', 'ann', ndjson],
    '`import`, CSV': [...service.command, 'import', 'ann', csv],
    ...found('psql') && {
      'psql\'s `\\copy`, CSV': ['psql', '--no-psqlrc', url, '--command',
        `\\copy plants (id, name, tag) from '${csv}' csv header`]
    }
  }
  // The file that psql imports has no column for the owner, so the table needs a default owner.
  await withClient(url, (client) => client.query("alter table plants alter owner set default 'ann'"))
  const rates = new Map(Object.keys(commands).map((title): [string, number[]] => [title, []]))
  for (let round = 1; round <= rounds; round++) {
    for (const [title, command] of Object.entries(commands)) {
      await withClient(url, (client) => client.query('truncate plants'))
      const rate = await importWith(command, url)
      console.log(`${round}/${rounds} ${title.padEnd(20)} ${rate.toFixed(0)} plants a second`)
      rates.get(title)?.push(Math.round(rate / 1000))
    }
  }
  return table(['a million plants', 'thousands a second'],
    [...rates].map(([title, values]) => [title, spread(values)]))
}
