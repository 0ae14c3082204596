// The columns of a plant beside its key, told once: every statement takes its lists from here.
import type { Plant } from './schemas.ts'

/** The SQL type of the column of each field. The column is called as the field is. */
const types: Record<keyof Plant, string> = {
  name: 'text',
  tag: 'text'
}

export const fields = Object.keys(types) as Array<keyof Plant>

/** The fields that can be of any length. */
export const texts = fields.filter((field) => types[field] === 'text')

/** `, name, tag`, to follow the key. */
export const columnList = fields.map((field) => `, ${field}`).join('')

/** `($1, $2, $3, $4), ($5, …)`: the key and the fields of so many plants. */
export function placeholdersOf (plants: number): string {
  const width = 2 + fields.length
  const row = (first: number) => Array.from({ length: width }, (_, column) => `$${first + column}`).join(', ')
  return Array.from({ length: plants }, (_, index) => `(${row(index * width + 1)})`).join(', ')
}

/** The plant in a row of the columns' values. An object made field by field would take half as long again. */
export const toPlant = ([name = [], tag = []]: unknown[][], row: number) => ({
  name: name[row],
  tag: tag[row] ?? undefined
} satisfies Record<keyof Plant, unknown> as Plant)
