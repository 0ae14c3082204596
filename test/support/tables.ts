import type { Table } from '../../src/table-gateway/table.ts'

/** Returns a row as a client creates it, with the examples of these fields. */
export const exampleOf = ({ fields, schema }: Table, id: number, some = fields): Record<string, unknown> =>
  Object.fromEntries([['id', id], ...some.map((field) => [field, schema.properties[field]?.examples[0]])])
