// Tests that docs/statements.sql has the statements that the service sends, and that its examples run.
import { readFile } from 'node:fs/promises'
import type { QueryResult } from 'pg'
import t from 'tap'
import { writeStatements } from '../../dev/write-sql.ts'
import { ownedTables } from '../../src/domains.ts'
import { booksTable, createLibrary } from '../support/books.ts'
import { openSession } from '../support/database.ts'
import { matchEach } from '../support/match.ts'

t.test('docs/statements.sql has the statements of each table: npm run sql', async (t) => {
  const file = new URL('../../docs/statements.sql', import.meta.url)
  t.equal(await readFile(file, 'utf8'), writeStatements(ownedTables))
})

t.test('the examples run on tables of any SQL types, and change nothing', async (t) => {
  t.match(writeStatements([booksTable]), /\btitle, sub_title, last_read_at\b/, 'columns are in snake case')
  const client = await openSession(t, await createLibrary(t))
  for (const table of [...ownedTables, booksTable]) {
    const results = await client.query(writeStatements([table])) as unknown as QueryResult[]
    const rows = results.flatMap(({ command, rows }) => /SELECT|INSERT|DELETE/.test(command) ? [rows] : [])
    const row = (owner: string, id: number) => ({ owner, id: String(id) })
    const page = (count: number) => ({ count: String(count), last_id: null, seconds: Number })
    matchEach(t, rows, [
      [row('alice', 1)], [row('alice', 2), row('alice', 3), row('bob', 1), row('bob', 2)],
      [{}], [page(3)], [{ n: '1', ...page(3) }, { n: '2', ...page(2) }], [{ count: '3' }], [{ id: '3' }],
      [row('alice', 1)], [row('alice', 2), row('bob', 1)]
    ])
    t.strictSame((await client.query(`select from ${table.name}`)).rows, [])
  }
})
