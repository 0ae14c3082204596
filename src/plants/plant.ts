// A plant: its schemas in requests and responses, and its table.
import { Type, type Static } from '@sinclair/typebox'
import { Int64, Int64Text, UnicodeText } from '../http/validation.ts'
import { defineTable } from '../table-gateway/table.ts'

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

export const PlantParamsSchema = Type.Object({
  id: Int64Text({ description: 'Identifier of the plant', examples: [42] })
})

export const plantsTable = defineTable<Plant>('plants', NewPlantSchema, { name: 'text', tag: 'text' })
