// The schemas of requests and responses about plants.
import { Type, type Static } from '@sinclair/typebox'
import { CursorText, Int64, Int64Text, LimitText, UnicodeText } from '../http/types.ts'

const fields = {
  name: UnicodeText({ description: 'The name of the plant', examples: ['Monstera deliciosa'] }),
  tag: Type.Optional(UnicodeText({ description: 'Tag to specify the type', examples: ['tropical'] }))
}

export const PlantSchema = Type.Object(fields, { $id: 'Plant', description: 'A stored plant' })
export type Plant = Static<typeof PlantSchema>

export const NewPlantSchema = Type.Object({
  id: Int64({ description: 'Identification number of the plant, chosen by the client', examples: [42] }),
  ...fields
}, { $id: 'NewPlant', description: 'A plant to store' })
export type NewPlant = Static<typeof NewPlantSchema>

export const PlantParamsSchema = Type.Object({
  id: Int64Text({ description: 'Identifier of the plant', examples: [42] })
})

export const ListQuerySchema = Type.Object({
  limit: Type.Optional(LimitText({
    description: 'Maximum number of results to return; all when absent',
    examples: [20]
  })),
  after: Type.Optional(CursorText({
    description: 'Where the list begins: a value from the header `Link`. At the first plant when absent'
  }))
}, { additionalProperties: false })

export const LinkHeader = {
  link: {
    type: 'string',
    description: 'The next page, while more plants follow: a URL relative to this one (RFC 8288)',
    examples: ['<?limit=20&after=NDM>; rel="next"']
  }
}

export const NoQuerySchema = Type.Object({}, { additionalProperties: false })
