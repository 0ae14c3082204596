// A plant: its schemas in requests and responses, its columns in the database, and its key.
import { Type, type Static } from '@sinclair/typebox'
import { Int64, Int64Text, UnicodeText } from '../http/validation.ts'

const properties = {
  name: UnicodeText({ description: 'The name of the plant', examples: ['Monstera deliciosa'] }),
  tag: Type.Optional(UnicodeText({ description: 'Tag to specify the type', examples: ['tropical'] }))
}

export const PlantSchema = Type.Object(properties, { $id: 'Plant', description: 'A stored plant' })
export type Plant = Static<typeof PlantSchema>

export const NewPlantSchema = Type.Object({
  id: Int64({ description: 'Identification number of the plant, chosen by the client', examples: [42] }),
  ...properties
}, { $id: 'NewPlant', description: 'A plant to store' })
export type NewPlant = Static<typeof NewPlantSchema>

export const PlantParamsSchema = Type.Object({
  id: Int64Text({ description: 'Identifier of the plant', examples: [42] })
})

/** The SQL type of each field's column. Statements are built from this list. */
const types: Record<keyof Plant, string> = { name: 'text', tag: 'text' }

export const fields = Object.keys(types) as Array<keyof Plant>
export const textFields = fields.filter((field) => types[field] === 'text')

/** The text `, name, tag`, which follows the key columns in a statement. */
export const columnList = fields.map((field) => `, ${field}`).join('')

/** Builds a plant from the value at `position` of each column. The columns have the order of `fields`. */
export const toPlant = ([name = [], tag = []]: unknown[][], position: number) => ({
  name: name[position],
  tag: tag[position] ?? undefined
} satisfies Record<keyof Plant, unknown> as Plant)

export interface PlantKey { user: string, id: string }
export interface PlantToStore extends PlantKey { plant: Plant }

/** Instances, `import` and `user erase` lock plants in this order, so that statements rarely deadlock. */
export function byKey (one: PlantKey, other: PlantKey): number {
  if (one.user !== other.user) return compareUsers(one.user, other.user)
  if (one.id === other.id) return 0
  // Beyond 2^53, different ids may be the same number.
  return Number(one.id) - Number(other.id) || (BigInt(one.id) < BigInt(other.id) ? -1 : 1)
}

/** Compares different users like PostgreSQL's collation "C": by the bytes of UTF-8. */
function compareUsers (one: string, other: string): number {
  // Only for characters from U+D800 on, the code units of UTF-16 may have another order than the bytes.
  if (/[\uD800-\uFFFF]/.test(one)) return Buffer.compare(Buffer.from(one), Buffer.from(other))
  return one < other ? -1 : 1
}
