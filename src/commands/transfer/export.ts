// The command `export`: writes plants to a file. PostgreSQL formats the lines.
import { once } from 'node:events'
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

/** Writes to standard output if there is no `file`. Exports the plants of all users if there is no `user`. */
export async function exportPlants (
  config: Config, user: string | undefined, file: string | undefined, { format }: { format?: string }
): Promise<void> {
  const { isCsv, isGzip } = findFormat(file, format)
  await runTransfer(config, async (transfer) => {
    const { client, signal } = transfer
    // The session's statement_timeout may be too short for an export, so turn this timeout off.
    await client.query('begin read only; set local statement_timeout = 0')
    const rows = client.query(to(isCsv ? copyCsv(user) : copyJson(user)))
    // Rejects if the connection is lost before the server has confirmed the export.
    const completed = once(client, 'drain')
    completed.catch(() => {})
    async function * countLines (chunks: AsyncIterable<Buffer>) {
      for await (const chunk of chunks) {
        for (let at = -1; (at = chunk.indexOf('\n', at + 1)) !== -1;) transfer.progress++
        yield chunk
      }
    }
    // Rename the file to its final name only when the file is complete.
    const part = `${file}.part`
    const output = file === undefined ? process.stdout : createWriteStream(part, { mode: 0o600, flush: true })
    const stages = [rows, countLines, ...isGzip ? [createGzip()] : [], output]
    const written = pipeline(stages as NodeJS.ReadWriteStream[], { signal }).then(() => completed)
    if (file === undefined) await written
    else await written.then(() => rename(part, file)).finally(() => rm(part, { force: true }))
    transfer.summary = () => `${rows.rowCount} exported`
  })
}

const plantsOf = (user?: string) =>
  `from plants where ${user === undefined ? 'true' : `owner = ${pg.escapeLiteral(user)}`} order by owner, id`

/** PostgreSQL writes `""` for an empty string, and an empty cell for an absent value. */
const copyCsv = (user?: string) => `copy (
    select ${user === undefined ? 'owner as "user", ' : ''}id${columnList} ${plantsOf(user)}
  ) to stdout (format csv, header)`

// Each line is a CSV row with one cell, which holds JSON. PostgreSQL never quotes this cell: the delimiter
// and the quote are control characters, and JSON contains no control characters.
const copyJson = (user?: string) => `copy (
    select ${user === undefined ? '\'{"user":\' || to_json(owner) || \',' : "'{"}"id":' || id
      ${fields.map((field) => `|| coalesce(',"${field}":' || to_json(${field}), '')`).join(' ')} || '}'
    ${plantsOf(user)}
  ) to stdout (format csv, delimiter E'\\x01', quote E'\\x02')`
