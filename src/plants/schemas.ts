// The schemas of requests and responses about plants.
import { Type, type Static } from '@sinclair/typebox'
import { defineType, Int64, Int64Text, isInt64, LimitText, UnicodeText } from '../http/types.ts'

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

export const writeCursor = (id: string) => Buffer.from(id).toString('base64url')
export const readCursor = (cursor: string) => Buffer.from(cursor, 'base64url').toString('latin1')

/** A plant's id, encoded by `writeCursor` so that clients do not use the text as an id or an offset. */
const CursorText = defineType<string>('CursorText', 'the value from the Link header of a list',
  { type: 'string' },
  (value) => typeof value === 'string' && isInt64(readCursor(value)) &&
    writeCursor(readCursor(value)) === value)

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
