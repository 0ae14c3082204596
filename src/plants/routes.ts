// The operations on plants: for each a contract, then a few lines of deed.
import { Readable } from 'node:stream'
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import { Type } from '@sinclair/typebox'
import { requireWriteAccess } from '../access/bearer.ts'
import { ApiError, errors, failures } from '../errors.ts'
import { plantErrors } from './errors.ts'
import type { Plants } from './repository.ts'
import { ListQuerySchema, NewPlantSchema, PlantParamsSchema, PlantSchema, type Plant } from './schemas.ts'

export const plantsRoutes: FastifyPluginAsyncTypebox<{ plants: Plants }> = async (app, { plants }) => {
  app.post('/plants', {
    onRequest: requireWriteAccess,
    schema: {
      operationId: 'createPlant',
      tags: ['Plants'],
      summary: 'Create a plant',
      description: 'Stores a plant of yours under an id of your choice. ' +
        'If you already have a plant with this id, that one stays as it is.',
      body: NewPlantSchema,
      response: { 200: PlantSchema, ...failures(plantErrors.ID_TAKEN, errors.TOKEN_READ_ONLY) }
    }
  }, async function createPlant (request) {
    if (!await plants.create(request.caller.user, request.body)) throw new ApiError(plantErrors.ID_TAKEN)
    // Only what a plant has goes out.
    return request.body
  })

  app.get('/plants', {
    schema: {
      operationId: 'listPlants',
      tags: ['Plants'],
      summary: 'List your plants',
      description: 'Gives your plants in ascending order of id: all of them, or the first `limit`.',
      querystring: ListQuerySchema,
      response: {
        200: Type.Array(PlantSchema, { description: 'Your plants' }),
        ...failures(errors.HTTP_TOO_OLD)
      }
    }
  }, async function listPlants (request, reply) {
    const { user } = request.caller
    const { limit } = request.query
    const first = await plants.list(user, limit === undefined ? undefined : Number(limit))
    if (first.rest === undefined) return first.plants
    const serialize = reply.getSerializationFunction('200') as unknown as Serialize
    reply.type('application/json')
    const rest = plants.listRest(user, first.rest)
    // Of a stream that answers HEAD all would be read, and dropped.
    const parts = request.method === 'HEAD' ? [] : toJson(first.plants, rest, serialize)
    return Readable.from(parts, { objectMode: false }) as never
  })

  app.delete('/plants/:id', {
    onRequest: requireWriteAccess,
    schema: {
      operationId: 'deletePlant',
      tags: ['Plants'],
      summary: 'Delete a plant',
      description: 'Deletes one of your plants. Whether an id is unused, deleted before ' +
        'or only another user\'s, the answer is the same 404.',
      params: PlantParamsSchema,
      response: {
        204: Type.Null({ description: 'The plant is gone' }),
        ...failures(plantErrors.PLANT_NOT_FOUND, errors.TOKEN_READ_ONLY)
      }
    }
  }, async function deletePlant (request, reply) {
    const wasThere = await plants.delete(request.caller.user, request.params.id)
    if (!wasThere) throw new ApiError(plantErrors.PLANT_NOT_FOUND)
    return reply.code(204).send(null)
  })
}

type Serialize = (plants: Plant[]) => string

/**
 * The JSON of a long list, a page at a time as the caller reads: one who doesn't
 * holds the text of a page and nothing else.
 */
async function * toJson (first: Plant[], pages: AsyncIterable<Plant[]>, serialize: Serialize) {
  yield serialize(first).slice(0, -1)
  for await (const plants of pages) if (plants.length > 0) yield `,${serialize(plants).slice(1, -1)}`
  yield ']'
}
