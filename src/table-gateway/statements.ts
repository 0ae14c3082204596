// The SQL statements of a table. docs/statements.sql has them as they run, with examples.
import type { Statement } from '../database/database.ts'
import { inlineBytes } from '../scheduling/memory-budget.ts'
import type { Table } from './table.ts'

export type Statements = ReturnType<typeof createStatements>

export const createStatements = (table: Table) =>
  ({ insert: createInsert(table), same: createSame(table), ...createDeletes(table), ...createReads(table) })

const selectList = ({ columns, selected }: Table) => columns
  .map((column, index) => column === selected[index] ? column : `${selected[index]} as ${column}`).join(', ')

const range = (length: number) => Array.from({ length }, (_, index) => index)

/** The returned function has a statement for each number of rows. */
function createInsert ({ name, columns }: Table) {
  const width = 2 + columns.length
  const statements: Statement[] = []
  // Use a `values` list: Citus can route each of its rows to a node, but cannot route the rows of `unnest`.
  const rowAt = (row: number) =>
    `(${range(width).map((column) => `$${row * width + column + 1}`).join(', ')})`
  const insertOf = (rows: number) => ({
    name: `${name}-insert`,
    preparedAs: `${name}-insert-${rows}`,
    text: `insert into ${name} (owner, id, ${columns.join(', ')})
values ${range(rows).map(rowAt).join(', ')}
on conflict do nothing returning owner, id`
  })
  return (rows: number) => (statements[rows] ??= insertOf(rows))
}

/** Returns a row if the user has a row with this id and these fields. */
const createSame = ({ name, columns }: Table) => ({
  name: `${name}-same`,
  text: `select from ${name} where owner = $1 and id = $2
and (${columns.join(', ')}) is not distinct from (${columns.map((_, index) => `$${index + 3}`).join(', ')})`
})

const createDeletes = ({ name }: Table) => ({
  deleteOne: {
    name: `${name}-delete-one`,
    text: `delete from ${name} where owner = $1 and id = $2 returning owner, id`
  },

  // The subselects hide the arrays' lengths from the planner. Otherwise PostgreSQL would replan, which almost
  // doubles a small batch's time. With `any`, PostgreSQL can only look up each key. With an equality, it
  // would read the whole table if the table was small when the statement was prepared.
  deleteMany: {
    name: `${name}-delete`,
    text: `delete from ${name}
using unnest((select $1::text[]), (select $2::bigint[])) as key (owner, id)
where ${name}.owner = any (array[key.owner]) and ${name}.id = key.id
returning ${name}.owner, ${name}.id`
  }
})

/** These statements return each page of rows as one row. `pages` returns a page for each of several lists. */
const createReads = (table: Table) => ({
  page: {
    name: `${table.name}-page`,
    text: pageOf(table, 'owner = $1 and id between $2 and $5', '$3', '$4')
  },

  // Without the subselects, the planner would see the arrays' lengths. PostgreSQL would replan most calls.
  pages: {
    name: `${table.name}-pages`,
    text: `select n, page.*
from unnest((select $1::text[]), (select $2::bigint[]), (select $3::bigint[]))
  with ordinality as list (owner, first, max_rows, n)
cross join lateral (
${pageOf(table, 'owner = list.owner and id >= list.first', 'list.max_rows', String(inlineBytes))}
) as page`
  },

  largePage: { name: `${table.name}-large-page`, text: largePageOf(table) },

  // For this statement, PostgreSQL reads only index entries.
  end: {
    name: `${table.name}-end`,
    text: `select id from ${table.name} where owner = $1 and id >= $2 order by id offset $3 limit 1`
  }
})

/**
 * Selects the count, the last id if the page is full, the seconds since the statement began, and a JSON array
 * per column. If the arrays exceed `maxBytes` or a text exceeds 256 bytes, all arrays are null: `largePage`
 * reads such pages. See docs/design/004-lists-in-pages.md.
 */
function pageOf (table: Table, condition: string, maxRows: string, maxBytes: string): string {
  const { name, columns, textColumns } = table
  const bytes = columns.map((column) => `octet_length(${column})`).join(' + ')
  const sizes = textColumns.map((column) => `octet_length(${column})`)
  const arrays = columns.map((column) =>
    `json_agg(case when not is_large then ${column} end order by id)::text as ${column}`)
  const smallArrays = columns.map((column) =>
    `case when not has_large and ${bytes} <= ${maxBytes} then ${column} end`)
  return `select count, case when count = ${maxRows} then last_id end as last_id,
  date_part('epoch', clock_timestamp() - statement_timestamp()) as seconds,
  ${smallArrays.join(',\n  ')}
from (
  select count(*) as count, max(id) as last_id, bool_or(is_large) as has_large,
    ${arrays.join(',\n    ')}
  from (
    select id, ${selectList(table)}, greatest(${['0', ...sizes].join(', ')}) > 256 as is_large
    from ${name} where ${condition} order by id limit ${maxRows}
  ) as item
) as page`
}

/**
 * Ends the page before the row that would bring the page's JSON over $4 bytes. The condition on
 * `bytes_before` needs only stored lengths. So PostgreSQL reads no large texts of rows after the page.
 */
function largePageOf (table: Table): string {
  const { name, columns, textColumns } = table
  const sumOf = (texts: string[]) =>
    ['0', ...texts.map((text) => `coalesce(octet_length(${text}), 0)`)].join(' + ')
  return `with item as (
  select id, ${selectList(table)},
    ${sumOf(textColumns)} as bytes
  from ${name} where owner = $1 and id between $2 and $5 order by id limit $3
), stored as (
  select *, sum(bytes) over (order by id) - bytes as bytes_before from item
), written as (
  select *, row_number() over (order by id) as n,
    sum(${sumOf(textColumns.map((column) => `to_json(${column})::text`))})
      over (order by id) as json_bytes
  from stored where bytes_before < $4::bigint
)
select count(*), case when count(*) = $3 or count(*) < (select count(*) from item) then max(id) end, 0,
  ${columns.map((column) => `json_agg(${column} order by id)`).join(', ')}
from written where json_bytes <= $4::bigint or n = 1`
}
