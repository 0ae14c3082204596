// The command export: writes plants to a file. PostgreSQL itself writes the lines.
import { createWriteStream } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'
import pg from 'pg'
import { to } from 'pg-copy-streams'
import type { Config } from '../../config.ts'
import { columnList, fields } from '../../plants/columns.ts'
import { findFormat } from './files.ts'
import { runTransfer } from './transfer.ts'

/** Writes to standard output without a file. Without a user it writes the plants of all users. */
export async function exportPlants (
  config: Config, user: string | undefined, file: string | undefined, { format }: { format?: string }
): Promise<void> {
  const { isCsv, isGzip } = findFormat(file, format)
  await runTransfer(config, async (transfer) => {
    const { client, signal } = transfer
    // One statement reads one snapshot. It may take longer than the role allows for requests.
    await client.query('begin read only; set local statement_timeout = 0')
    const rows = client.query(to(isCsv ? copyCsv(user) : copyJson(user)))
    const completed = new Promise((resolve) => { client.once('drain', resolve) })
    async function * countLines (chunks: AsyncIterable<Buffer>) {
      for await (const chunk of chunks) {
        for (let at = -1; (at = chunk.indexOf('\n', at + 1)) !== -1;) transfer.lines++
        yield chunk
      }
    }
    // The file appears when it is complete.
    const part = `${file}.part`
    const output = file === undefined ? process.stdout : createWriteStream(part, { mode: 0o600, flush: true })
    const stages = [rows, countLines, ...isGzip ? [createGzip()] : [], output]
    const written = pipeline(stages as NodeJS.ReadWriteStream[], { signal })
    if (file === undefined) await written
    else await written.then(() => rename(part, file)).finally(() => rm(part, { force: true }))
    await completed
    transfer.summary = () => `${rows.rowCount} exported`
  })
}

const plantsOf = (user?: string) =>
  `from plants where ${user === undefined ? 'true' : `owner = ${pg.escapeLiteral(user)}`} order by owner, id`

/** An absent value is an empty cell without quotes. */
const copyCsv = (user?: string) => `copy (
    select ${user === undefined ? 'owner as "user", ' : ''}id${columnList} ${plantsOf(user)}
  ) to stdout (format csv, header)`

// A line has one cell. PostgreSQL quotes no cell, because JSON has neither of the two control characters.
const copyJson = (user?: string) => `copy (
    select ${user === undefined ? '\'{"user":\' || to_json(owner) || \',' : "'{"}"id":' || id
      ${fields.map((field) => `|| coalesce(',"${field}":' || to_json(${field}), '')`).join(' ')} || '}'
    ${plantsOf(user)}
  ) to stdout (format csv, delimiter E'\\x01', quote E'\\x02')`
