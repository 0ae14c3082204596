// Describes a table with rows of users. Its key is (owner, id), and each further column is a field of a row.
import type { TObject } from '@sinclair/typebox'

/** The SQL types that this folder can store, and select as JSON without a change of the value. */
type SqlType = 'text' | 'boolean' | 'integer' | 'double precision' | 'timestamptz'

export interface Table<Field extends string = string> {
  name: string
  /** The schema of the rows that clients create: the id and the fields. */
  schema: TObject
  fields: Field[]
  textFields: Field[]
  /** The fields with a number or a boolean as value. The values of all others are strings. */
  scalarFields: Field[]
  /** The columns of the fields. They follow the key columns in a statement. */
  columns: string[]
  /** The SQL types of the columns. */
  types: SqlType[]
  textColumns: string[]
  /** For each column, an expression that selects the value of the field. */
  selected: string[]
}

/** The migration names the column of a field like the field, in snake case. */
const toColumn = (field: string) => field.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)

// Lists and exports return a time in the form of `Date.prototype.toJSON`, which is the form of requests.
const toSelected = (column: string, type: SqlType) => type === 'timestamptz'
  ? `to_char(${column} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`
  : column

/** `types` has the SQL type of each field, as in the migration. */
export function defineTable<Row extends object> (
  name: string, schema: TObject, types: Record<keyof Row & string, SqlType>
): Table<keyof Row & string> {
  // In the order of the schema, which is the order of the fields in responses.
  const fields = Object.keys(schema.properties).filter((field) => field in types) as Array<keyof Row & string>
  const textFields = fields.filter((field) => types[field] === 'text')
  return {
    name,
    schema,
    fields,
    textFields,
    scalarFields: fields.filter((field) => !['text', 'timestamptz'].includes(types[field])),
    columns: fields.map(toColumn),
    types: fields.map((field) => types[field]),
    textColumns: textFields.map(toColumn),
    selected: fields.map((field) => toSelected(toColumn(field), types[field]))
  }
}

export interface RowKey { user: string, id: string }
export interface NewRow<Row> extends RowKey { row: Row }

/** Instances, `import` and `user erase` lock rows in this order, so that statements rarely deadlock. */
export function byKey (one: RowKey, other: RowKey): number {
  if (one.user !== other.user) return compareUsers(one.user, other.user)
  // Beyond 2^53, different ids may be the same number.
  return Number(one.id) - Number(other.id) || Number(BigInt(one.id) - BigInt(other.id))
}

/** Compares different users like PostgreSQL's collation "C": by the bytes of UTF-8. */
function compareUsers (one: string, other: string): number {
  // Only for characters from U+D800 on, the code units of UTF-16 may have another order than the bytes.
  if (/[\uD800-\uFFFF]/.test(one)) return Buffer.compare(Buffer.from(one), Buffer.from(other))
  return one < other ? -1 : 1
}
