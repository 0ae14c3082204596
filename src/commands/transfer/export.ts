// The command `export`: writes the rows of a table to a file.
import { randomUUID } from 'node:crypto'
import { createWriteStream, openSync, renameSync, rmSync } from 'node:fs'
import type { Socket } from 'node:net'
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'
import pg from 'pg'
import { to } from 'pg-copy-streams'
import type { Config } from '../../config.ts'
import type { Table } from '../../table-gateway/table.ts'
import { findFormat } from './files.ts'
import { megabytes, runTransfer } from './transfer.ts'

/** Writes to standard output if there is no `file`. Exports the rows of all users if there is no `user`. */
export async function exportRows (
  config: Config, table: Table, user: string | undefined, file: string | undefined,
  { format }: { format?: string }
): Promise<void> {
  const { isCsv, isGzip } = findFormat(file, format)
  await runTransfer(config, 'export', {}, async (transfer) => {
    const { client } = transfer
    const stream = client.connection.stream as Socket
    // The role's statement_timeout may be too short for an export, so turn this timeout off. The user timeout
    // of `beginTransaction` would end an export if its reader pauses for 60 s.
    await client.query('begin read only; set local statement_timeout = 0')
    if (file !== undefined || !process.stdout.isTTY) {
      transfer.progress = () => `${megabytes(stream.bytesRead)} MB`
    }
    // Rename the file to its final name only when the file is complete. Do not open an existing file.
    const part = `${file}.${randomUUID()}.part`
    transfer.cleanUp = () => rmSync(part, { force: true })
    const output = file === undefined
      ? process.stdout
      : createWriteStream(part, { fd: openSync(part, 'wx', 0o600), flush: true })
    const rows = client.query(to(copyStatement(table, isCsv, user)))
    try {
      await pipeline(rows, ...isGzip ? [createGzip()] : [], output)
      // Rejects if the connection is lost before the server has confirmed the export.
      await client.query('commit')
      if (user !== undefined && rows.rowCount === 0) {
        throw new Error(`There are no ${table.name} of ${user}. The command user list shows all users.`)
      }
      if (file !== undefined) renameSync(part, file)
    } catch (error) {
      // The reader has closed the pipe, as in `plant-store export … | head`.
      if ((error as NodeJS.ErrnoException).code === 'EPIPE' && !stream.destroyed) return
      throw error
    }
    transfer.summary = () => `${rows.rowCount} exported`
  })
}

/** PostgreSQL writes the lines. */
function copyStatement (table: Table, isCsv: boolean, user?: string): string {
  const { name, fields, scalarFields, columns, selected } = table
  const members = [...user === undefined ? [['user', 'owner']] : [], ['id', 'id'],
    // In CSV, COPY would write a boolean as `t` or `f`.
    ...fields.map((field, index) => [field,
      isCsv && scalarFields.includes(field) ? `to_json(${columns[index]})` : selected[index]])]
  // The quotes keep the upper-case letters of a field in the header. COPY quotes no line of JSON, which has
  // no control characters.
  const [list, options] = isCsv
    ? [members.map(([field, value]) => `${value} as "${field}"`).join(), 'header']
    : [`json_strip_nulls(json_build_object(${members.map(([field, value]) => `'${field}', ${value}`)}))`,
        "delimiter e'\\x01', quote e'\\x02'"]
  const condition = user === undefined ? 'true' : `owner = ${pg.escapeLiteral(user)}`
  return `copy (select ${list} from ${name} where ${condition} order by owner, id)
    to stdout (format csv, ${options})`
}
