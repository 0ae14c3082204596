// The HTTP operations on plants and their errors.
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import { Type } from '@sinclair/typebox'
import { ApiError, defineErrors } from '../errors.ts'
import { listErrors, listOf, ListQuerySchema, rangeOf, sendList } from '../table-gateway/list-routes.ts'
import { NewPlantSchema, PlantParamsSchema, PlantSchema } from './plant.ts'
import type { Plants } from './repository.ts'

const { ID_TAKEN, ALREADY_STORED, PLANT_NOT_FOUND } = defineErrors({
  ID_TAKEN: [40014, 'You already have a plant with this id.'],
  ALREADY_STORED: [40019, 'This plant is already stored.'],
  PLANT_NOT_FOUND: [40402, 'You have no plant with this id.']
})

export const plantsRoutes: FastifyPluginAsyncTypebox<{ plants: Plants }> = async (app, { plants }) => {
  app.addSchema(PlantSchema)
  app.addSchema(NewPlantSchema)

  app.post('/plants', {
    config: { errors: [ID_TAKEN, ALREADY_STORED] },
    schema: {
      operationId: 'createPlant',
      tags: ['Plants'],
      summary: 'Create a plant',
      description: 'Stores a plant under an id that you choose. Keep the id: responses contain no ids. ' +
        'If you already have a plant with this id, the stored plant does not change: ' +
        'the error is 40019 if the two plants are equal, otherwise 40014.',
      body: NewPlantSchema,
      response: { 200: PlantSchema }
    }
  }, async ({ identity, body }) => {
    // The response schema drops the id and unknown fields.
    if (await plants.create(identity, body)) return body
    throw new ApiError(await plants.has(identity, body) ? ALREADY_STORED : ID_TAKEN)
  })

  app.get('/plants', {
    config: { errors: listErrors },
    schema: {
      operationId: 'listPlants',
      tags: ['Plants'],
      summary: 'List your plants',
      description: 'Returns your plants, without their ids, in ascending order of id: ' +
        'all of them, or the first `limit`. While more follow, the header `Link` leads to the next page.',
      querystring: ListQuerySchema,
      response: { 200: listOf(PlantSchema, 'plants') }
    }
  }, async (request, reply) => {
    const list = await plants.list(request.identity, rangeOf(request.query), reply.raw)
    return sendList(request, reply, list)
  })

  app.delete('/plants/:id', {
    config: { errors: [PLANT_NOT_FOUND] },
    schema: {
      operationId: 'deletePlant',
      tags: ['Plants'],
      summary: 'Delete a plant',
      description: 'Deletes one of your plants. An id that is unused, already deleted ' +
        'or only another user\'s gets the same 404.',
      params: PlantParamsSchema,
      response: { 204: Type.Null({ description: 'The plant is deleted' }) }
    }
  }, async (request, reply) => {
    if (!await plants.delete(request.identity, request.params.id)) throw new ApiError(PLANT_NOT_FOUND)
    // Return nothing, not `null`: Fastify would serialize `null` as JSON, although a 204 has no body.
    reply.code(204)
  })
}
