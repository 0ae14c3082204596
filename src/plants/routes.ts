import { Readable } from 'node:stream'
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import { Type } from '@sinclair/typebox'
import { requireWriteAccess } from '../access/bearer.ts'
import { ApiError, ErrorSchema } from '../errors.ts'
import type { Page, Plants } from './repository.ts'
import { ListQuerySchema, NewPlantSchema, PlantParamsSchema, PlantSchema, type Plant } from './schemas.ts'

export const plantsRoutes: FastifyPluginAsyncTypebox<{ plants: Plants }> = async (app, { plants }) => {
  const errors = { '4xx': ErrorSchema, '5xx': ErrorSchema }

  app.post('/plants', {
    onRequest: requireWriteAccess,
    schema: { body: NewPlantSchema, response: { 200: PlantSchema, ...errors } }
  }, async function createPlant (request) {
    const { name, tag } = request.body
    if (!await plants.create(request.caller.user, request.body)) throw new ApiError('ID_TAKEN')
    return { name, tag }
  })

  app.get('/plants', {
    schema: { querystring: ListQuerySchema, response: { 200: Type.Array(PlantSchema), ...errors } }
  }, async function listPlants (request, reply) {
    const { user } = request.caller
    const { limit } = request.query
    const first = await plants.list(user, { limit: limit === undefined ? undefined : Number(limit) })
    if (first.next === undefined) return first.plants
    const serialize = reply.getSerializationFunction('200') as unknown as (plants: Plant[]) => string
    reply.type('application/json')
    return Readable.from(toJson(first, (next) => plants.list(user, next), serialize), { objectMode: false }) as never
  })

  app.delete('/plants/:id', {
    onRequest: requireWriteAccess,
    schema: { params: PlantParamsSchema, response: { 204: Type.Null(), ...errors } }
  }, async function deletePlant (request, reply) {
    if (!await plants.delete(request.caller.user, request.params.id)) throw new ApiError('PLANT_NOT_FOUND')
    return reply.code(204).send(null)
  })
}

/** The JSON of a long list, a page at a time as the caller reads: nothing is held for one who doesn't. */
async function * toJson (page: Page, getNext: (next: NonNullable<Page['next']>) => Promise<Page>, serialize: (plants: Plant[]) => string) {
  let opening = '['
  for (;;) {
    if (page.plants.length > 0) {
      yield opening + serialize(page.plants).slice(1, -1)
      opening = ','
    }
    if (page.next === undefined) break
    page = await getNext(page.next)
  }
  yield opening === '[' ? '[]' : ']'
}
