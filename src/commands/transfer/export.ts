// The command `export`: writes the rows of a table to a file.
import { randomUUID } from 'node:crypto'
import { createWriteStream, statSync } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'
import pg from 'pg'
import { to } from 'pg-copy-streams'
import type { Config } from '../../config.ts'
import type { Table } from '../../table-gateway/table.ts'
import { findFormat } from './files.ts'
import { runTransfer, type Transfer } from './transfer.ts'

/** Writes to standard output if there is no `file`. Exports the rows of all users if there is no `user`. */
export async function exportRows (
  config: Config, table: Table, user: string | undefined, file: string | undefined,
  { format }: { format?: string }
): Promise<void> {
  const { isCsv, isGzip } = findFormat(file, format)
  if (file !== undefined && statSync(file, { throwIfNoEntry: false })?.isFile() === false) {
    throw new Error(`${file}: expected a new name, or a regular file to replace`)
  }
  await runTransfer(config, 'export', async (transfer) => {
    const { client, signal } = transfer
    // The role's statement_timeout may be too short for an export, so turn this timeout off.
    await client.query('begin read only; set local statement_timeout = 0')
    const isShown = process.stderr.isTTY && (file !== undefined || !process.stdout.isTTY)
    const count = isShown ? [await countRows(transfer, table, user)] : []
    const rows = client.query(to(copyStatement(table, isCsv, user)))
    const convert = isCsv ? [] : [(chunks: AsyncIterable<Buffer>) => toNdjson(chunks, table, user)]
    // Rename the file to its final name only when the file is complete. Do not open an existing file.
    const part = `${file}.${randomUUID()}.part`
    const options = { flags: 'wx', mode: 0o600, flush: true }
    const output = file === undefined ? process.stdout : createWriteStream(part, options)
    const zip = isGzip ? [createGzip()] : []
    // The commit rejects if the connection is lost before the server has confirmed the export.
    const written = pipeline(rows, ...convert, ...count, ...zip, output, { signal })
      .then(() => client.query('commit'))
    try {
      if (file === undefined) await written
      else await written.then(() => rename(part, file)).finally(() => rm(part, { force: true }))
    } catch (error) {
      // The reader has closed the pipe, as in `plant-store export … | head`.
      if ((error as NodeJS.ErrnoException).code === 'EPIPE' && !client.connection.stream.destroyed) return
      throw error
    }
    transfer.summary = () => `${rows.rowCount} exported`
  })
}

/** Starts the progress line. Pass all lines of the file through the returned function. */
async function countRows (transfer: Transfer, { name }: Table, user?: string) {
  // Counting the rows of all users could take long. Use PostgreSQL's estimate, which is -1 if unknown.
  const { rows: [row] } = await transfer.client.query(user === undefined
    ? `select nullif(reltuples, -1) as total from pg_class where oid = '${name}'::regclass`
    : `select count(*) as total from ${name} where owner = ${pg.escapeLiteral(user)}`)
  let [bytes, rows] = [0, 0]
  transfer.progress = () => ({ kind: name, bytes, rows, totalRows: Number(row.total) || undefined })
  return async function * (chunks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    for await (const chunk of chunks) {
      bytes += chunk.length
      // The number of a line feed: with a string, `indexOf` takes twice as long.
      for (let at = -1; (at = chunk.indexOf(0x0A, at + 1)) !== -1;) rows++
      yield chunk
    }
  }
}

function copyStatement (table: Table, isCsv: boolean, user?: string): string {
  const { name, fields, scalarFields, columns, selected } = table
  const [owner, condition] = user === undefined
    ? ['owner as "user", ', 'true']
    : ['', `owner = ${pg.escapeLiteral(user)}`]
  // COPY would write a boolean as `t` or `f`.
  const values = fields.map((field, index) =>
    scalarFields.includes(field) ? `to_json(${columns[index]})` : selected[index])
  // The quotes keep the upper-case letters of a field in the header.
  const list = fields.map((field, index) => `, ${values[index]} as "${field}"`).join('')
  return `copy (select ${owner}id${list} from ${name} where ${condition} order by owner, id)
    to stdout ${isCsv ? '(format csv, header)' : ''}`
}

// COPY's text format has the escapes of JSON, except for quotes, `\v` and most control characters. Match
// escaped backslashes, too: a `v` after them is only a letter.
const escapable = /\\[v\\]|[^\t\n -\xFF]|"/g

function escape (found: string): string {
  if (found === '"') return '\\"'
  if (found.startsWith('\\')) return found.replace('v', 'u000b')
  return `\\u${found.charCodeAt(0).toString(16).padStart(4, '0')}`
}

/** Turns COPY's text format into JSON. PostgreSQL would take longer. */
async function * toNdjson (
  chunks: AsyncIterable<Buffer>, { fields, scalarFields }: Table, user?: string
): AsyncGenerator<Buffer> {
  const keys = [...user === undefined ? ['user'] : [], 'id', ...fields]
  const line = new RegExp(`${keys.map(() => '([^\\t\\n]*)').join('\\t')}\\n`, 'g')
  const members = keys.map((key, index) =>
    ['id', ...scalarFields].includes(key) ? `"${key}":$${index + 1}` : `"${key}":"$${index + 1}"`)
  const json = `{${members.join()}}\n`
  const absent = new RegExp(`,"(?:${fields.join('|')})":"?\\\\N"?`, 'g')
  let rest = ''
  for await (const chunk of chunks) {
    // Each byte becomes a character. So the bytes of UTF-8 stay unchanged.
    const text = rest + chunk.toString('latin1')
    const end = text.lastIndexOf('\n') + 1
    rest = text.slice(end)
    const escaped = text.slice(0, end).replaceAll(escapable, escape)
    yield Buffer.from(escaped.replaceAll(line, json).replaceAll(absent, ''), 'latin1')
  }
}
