// Checks the lines of an import by the schema of the table, as a create does.
import { Type } from '@sinclair/typebox'
import { isPrintable } from '../../access/tokens.ts'
import { compileValidator, Int64Text, UnicodeText } from '../../http/validation.ts'
import type { NewRow, Table } from '../../table-gateway/table.ts'
import type { Fields } from './batch.ts'
import { invalid, type Line } from './files.ts'

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
    // In JSON, a character of a CSV file may take six bytes. Lists and exports rely on the limit.
    if (line.text.length * 6 > maxBytes && Buffer.byteLength(JSON.stringify(row, fields)) > maxBytes) {
      throw invalid(`The fields must not have more than ${maxBytes} bytes as JSON.`)
    }
    return { user: user ?? row.user, id: String(row.id), row }
  }
}
