// The columns that hold a plant's fields. Statements are built from this list.
import type { Plant } from './schemas.ts'

/** The SQL type of each column. */
export const types: Record<keyof Plant, string> = {
  name: 'text',
  tag: 'text'
}

export const fields = Object.keys(types) as Array<keyof Plant>

export const textFields = fields.filter((field) => types[field] === 'text')

/** The text `, name, tag`, which follows the key columns in a statement. */
export const columnList = fields.map((field) => `, ${field}`).join('')

/** Returns `($1, $2, $3, $4), ($5, …)`: a row of placeholders for the key and fields of each plant. */
export function placeholdersOf (plants: number): string {
  const width = 2 + fields.length
  const row = (first: number) => Array.from({ length: width }, (_, column) => `$${first + column}`).join(', ')
  return Array.from({ length: plants }, (_, index) => `(${row(index * width + 1)})`).join(', ')
}

/** Builds a plant from the value at `position` of each column. The columns have the order of `fields`. */
export const toPlant = ([name = [], tag = []]: unknown[][], position: number) => ({
  name: name[position],
  tag: tag[position] ?? undefined
} satisfies Record<keyof Plant, unknown> as Plant)
