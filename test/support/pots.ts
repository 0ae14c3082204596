// An example of a second domain, with 64-bit integers in many places.
import { Type } from '@sinclair/typebox'
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import type { Test } from 'tap'
import { ApiError, defineErrors } from '../../src/errors.ts'
import { Int64, Int64Text, LimitText, UnicodeText } from '../../src/http/types.ts'
import { startApp } from './app.ts'

const { POT_BROKEN } = defineErrors({ POT_BROKEN: { number: 40997, message: 'The pot is broken.' } })

const PotSchema = Type.Object({
  serial: Int64({ description: 'The number on the bottom of the pot', examples: [7] }),
  shelf: Type.Optional(Int64({ description: 'The number of the shelf', examples: [1] })),
  glazed: Type.Boolean({ examples: [true] }),
  height: Type.Integer({ minimum: 1, maximum: 300, examples: [20] }),
  colour: Type.Union([Type.Literal('red'), Type.Literal('green')], { examples: ['red'] }),
  maker: Type.Object({
    name: UnicodeText({ description: 'The name of the maker', examples: ['Spode'] }),
    licence: Type.Optional(Int64({ description: 'The license of the maker', examples: [3] }))
  }),
  cracks: Type.Array(Type.Object({
    found: Int64({ description: 'The time of discovery, in nanoseconds', examples: [1] })
  }), { maxItems: 2 })
}, { $id: 'Pot', description: 'A pot' })

const potsRoutes: FastifyPluginAsyncTypebox = async (app) => {
  app.addSchema(PotSchema)
  app.post('/pots', {
    schema: {
      operationId: 'createPot',
      tags: ['Pots'],
      summary: 'Keep a pot',
      body: PotSchema,
      response: { 200: PotSchema }
    },
    config: { errors: [POT_BROKEN] }
  }, async function createPot (request) {
    if (request.body.cracks.some(({ found }) => BigInt(found) === 0n)) throw new ApiError(POT_BROKEN)
    return { ...request.body, serial: BigInt(request.body.serial) + 0n }
  })
  app.get('/pots/:serial', {
    schema: {
      operationId: 'showPot',
      tags: ['Pots'],
      summary: 'Show a pot',
      params: Type.Object({
        serial: Int64Text({ description: 'The number on the bottom of the pot', examples: [7] })
      }),
      querystring: Type.Object({
        cracks: Type.Optional(LimitText({ description: 'The number of cracks to return', examples: [1] }))
      }),
      response: {
        200: Type.Object({
          serial: Int64({ description: 'The number', examples: [7] })
        }, { description: 'A pot' })
      }
    }
  }, async function showPot (request) {
    return { serial: BigInt(request.params.serial) }
  })
}

export async function startPots (t: Test) {
  const { app, as, listen } = await startApp(t, {}, async (guarded) => { await guarded.register(potsRoutes) })
  const { authorization } = await as('alice')
  const create = (payload: string, query = '') => app.inject({
    method: 'POST',
    url: `/pots${query}`,
    headers: { authorization, 'content-type': 'application/json' },
    payload
  })
  const show = (path: string) => app.inject({ url: `/pots/${path}`, headers: { authorization } })
  return { app, as, create, show, listen, token: authorization.replace('Bearer ', '') }
}
