// Writes docs/statements.sql, the statements of each table with an owner: npm run sql
import { writeFile } from 'node:fs/promises'
import pg from 'pg'
import type { Statement } from '../src/database/database.ts'
import { firstId } from '../src/table-gateway/pages.ts'
import { createStatements } from '../src/table-gateway/statements.ts'
import type { Table } from '../src/table-gateway/table.ts'
import { ownedTables } from '../src/domains.ts'

const [alice, bob] = ["'alice'", "'bob'"]
const lastId = '9223372036854775807'

function * describe (table: Table): Generator<[use: string, statement: Statement, example: string[]]> {
  const { insert, same, deleteOne, deleteMany, page, pages, largePage, end } = createStatements(table)
  const values = table.fields.map((field) => {
    const [value] = table.schema.properties[field]?.examples
    return typeof value === 'string' ? pg.escapeLiteral(value) : String(value)
  })
  const rowsOf = (...keys: string[]) => keys.flatMap((key) => [key, ...values])
  yield ['Creates one row.', insert(1), rowsOf(`${alice}, 1`)]
  yield ['Creates a batch. A batch has one of 32 sizes: copies of the last row fill up a larger batch.',
    insert(4), rowsOf(`${alice}, 2`, `${alice}, 3`, `${bob}, 1`, `${bob}, 2`)]
  yield ['After a create that has failed: whether the stored row equals the sent row.',
    same, rowsOf(`${alice}, 1`)]
  yield ['Reads the first page of one list, or a page of a long list. $3: rows, $4: bytes.',
    page, [alice, firstId, '101', '65536', lastId]]
  yield ['Reads the first pages of several lists.',
    pages, [`array[${alice}, ${bob}]`, `array[${firstId}, 1]`, 'array[101, 3]']]
  yield ['Reads a page that is too large for the statement above.',
    largePage, [alice, firstId, '2000', '131072', lastId]]
  yield ['Finds the end of a long list: the first row after $3 rows.', end, [alice, '1', '2']]
  yield ['Deletes one row.', deleteOne, [alice, '1']]
  yield ['Deletes a batch.', deleteMany, [`array[${alice}, ${bob}]`, 'array[2, 1]']]
}

const head = `-- The statements on rows of users, as the service sends them. Written by npm run sql.
-- To try a statement in psql, paste it with its example. The whole file changes nothing.
begin;
`

export function writeStatements (tables: Array<Table>): string {
  const parts = tables.flatMap((table) => [...describe(table)]).map(([use, statement, example]) => {
    const { name, preparedAs = name, text } = statement
    return `
-- ${use}
prepare "${preparedAs}" as
${text};

execute "${preparedAs}" (${example.join(', ')});
`
  })
  return `${head}${parts.join('')}\ndeallocate all;\nrollback;\n`
}

if (import.meta.main) await writeFile('docs/statements.sql', writeStatements(ownedTables))
