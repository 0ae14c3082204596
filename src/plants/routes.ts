// The operations on plants: for each a contract, then a few lines of deed.
import type { ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { requireWriteAccess } from '../access/bearer.ts'
import { ApiError, errors, failures } from '../errors.ts'
import { userWork } from '../scheduling/tick-limiter.ts'
import { plantErrors } from './errors.ts'
import type { Page } from './pages.ts'
import type { Plants } from './repository.ts'
import { ListQuerySchema, NewPlantSchema, PlantParamsSchema, PlantSchema, type Plant } from './schemas.ts'

type Plugin = FastifyPluginAsyncTypebox<{ plants: Plants }>
type App = Parameters<Plugin>[0]

export const plantsRoutes: Plugin = async (app, { plants }) => {
  createPlant(app, plants)
  listPlants(app, plants)
  deletePlant(app, plants)
}

function createPlant (app: App, plants: Plants): void {
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
  }, async (request) => {
    await request.revalidate()
    if (!await plants.create(request.identity.user, request.body)) throw new ApiError(plantErrors.ID_TAKEN)
    // Only what a plant has goes out.
    return request.body
  })
}

function listPlants (app: App, plants: Plants): void {
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
  }, async (request, reply) => {
    const { limit } = request.query
    const most = limit === undefined ? undefined : Number(limit)
    const list = await plants.list(request.identity.user, most, reply.raw)
    if (Array.isArray(list)) return list
    reply.type('application/json')
    // A stream that responds to HEAD would be read to its end and dropped.
    const chunks = request.method === 'HEAD' ? [] : toJson(list, request, reply)
    return Readable.from(chunks, { objectMode: false }) as never
  })
}

function deletePlant (app: App, plants: Plants): void {
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
  }, async (request, reply) => {
    await request.revalidate()
    const wasThere = await plants.delete(request.identity.user, request.params.id)
    if (!wasThere) throw new ApiError(plantErrors.PLANT_NOT_FOUND)
    // With nothing to send: of null Fastify would first make JSON.
    reply.code(204)
  })
}

/** The JSON of a long list, page by page. When the token becomes invalid the stream ends with an error. */
async function * toJson (pages: AsyncIterable<Page>, request: FastifyRequest, reply: FastifyReply) {
  const serialize = reply.getSerializationFunction('200') as unknown as (plants: Plant[]) => string
  let before = '['
  for await (const page of pages) {
    if (page.count === 0) break
    await request.revalidate()
    await new Promise<void>((resolve) => userWork.run(request.identity.user, page.bytes, resolve))
    yield before + serialize(page.toPlants()).slice(1, -1)
    before = ','
    await drained(reply.raw)
  }
  yield before === '[' ? '[]' : ']'
}

/** By itself a stream would read the next page before the client has taken this one. */
async function drained ({ socket }: ServerResponse): Promise<void> {
  if (!socket?.writableNeedDrain) return
  const { promise, resolve } = Promise.withResolvers<void>()
  for (const event of ['drain', 'close']) socket.once(event, resolve)
  await promise
  for (const event of ['drain', 'close']) socket.off(event, resolve)
}
