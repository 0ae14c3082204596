// Checks the lines of an import by the schema of the table, as a create does.
import { Type } from '@sinclair/typebox'
import { isPrintable } from '../../access/tokens.ts'
import { compileValidator, Int64Text, UnicodeText } from '../../http/validation.ts'
import type { NewRow, Table } from '../../table-gateway/table.ts'
import { invalid, type Line } from './files.ts'

/** The values of a row, by the names of the fields. */
export type Fields = Record<string, string | number | boolean | undefined>

/** The returned function throws an ApiError for an invalid line. `maxBytes` limits the fields as JSON. */
export function createCheck (
  { schema: { properties }, fields }: Table, isCsv: boolean, user: string | undefined, maxBytes: number
): (line: Line) => NewRow<Fields> {
  const owner = user === undefined && { user: UnicodeText({ description: 'The user' }) }
  const id = isCsv && { id: Int64Text({ description: 'The id' }) }
  const schema = Type.Object({ ...owner, ...properties, ...id })
  const validate = compileValidator({ schema, httpPart: 'body' })
  return (line) => {
    const { value: row, error } = validate(line.parse()) as
      { value: Fields & { user: string }, error?: Error }
    if (error !== undefined) throw error
    if (user && 'user' in row) throw invalid('user must be absent, or use --all.')
    if (!user && !isPrintable(row.user)) throw invalid('user must be 1 to 255 printable characters.')
    // In JSON, a character takes at most six bytes. Lists and exports rely on the limit.
    if (Object.values(row).join().length * 6 > maxBytes / 2 && Buffer.byteLength(JSON.stringify(row, fields)) > maxBytes) {
      throw invalid(`The fields must not have more than ${maxBytes} bytes as JSON.`)
    }
    return { user: user ?? row.user, id: String(row.id), row }
  }
}
