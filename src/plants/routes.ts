// The operations on plants: for each a contract, then a few lines of deed.
import type { ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import { Type } from '@sinclair/typebox'
import { requireWriteAccess } from '../access/bearer.ts'
import { ApiError, errors } from '../errors.ts'
import { plantErrors } from './errors.ts'
import type { Page } from './pages.ts'
import type { Plants } from './repository.ts'
import {
  ListQuerySchema, NewPlantSchema, NoQuerySchema, PlantParamsSchema, PlantSchema, type Plant
} from './schemas.ts'

type Plugin = FastifyPluginAsyncTypebox<{ plants: Plants }>
type App = Parameters<Plugin>[0]

export const plantsRoutes: Plugin = async (app, { plants }) => {
  app.addSchema(PlantSchema)
  app.addSchema(NewPlantSchema)
  createPlant(app, plants)
  listPlants(app, plants)
  deletePlant(app, plants)
}

function createPlant (app: App, plants: Plants): void {
  app.post('/plants', {
    onRequest: requireWriteAccess,
    config: { errors: [plantErrors.ID_TAKEN, errors.TOKEN_READ_ONLY] },
    schema: {
      operationId: 'createPlant',
      tags: ['Plants'],
      summary: 'Create a plant',
      description: 'Stores a plant under an id that you choose. ' +
        'If you already have a plant with this id, the stored plant does not change.',
      body: NewPlantSchema,
      querystring: NoQuerySchema,
      response: { 200: PlantSchema }
    }
  }, async (request) => {
    if (!await plants.create(request.caller.user, request.body)) throw new ApiError(plantErrors.ID_TAKEN)
    // Only what a plant has goes out.
    return request.body
  })
}

function listPlants (app: App, plants: Plants): void {
  app.get('/plants', {
    config: { errors: [errors.HTTP_TOO_OLD] },
    schema: {
      operationId: 'listPlants',
      tags: ['Plants'],
      summary: 'List your plants',
      description: 'Returns your plants in ascending order of id: all of them, or the first `limit`.',
      querystring: ListQuerySchema,
      response: { 200: Type.Array(PlantSchema, { description: 'Your plants' }) }
    }
  }, async (request, reply) => {
    const { user } = request.caller
    const { limit } = request.query
    const first = await plants.list(user, limit === undefined ? undefined : Number(limit), reply.raw)
    if (first.rest === undefined && first.bytes < longText) return first.plants
    const hold = plants.trackMemory(user, reply.raw)
    hold(first.bytes)
    if (first.rest === undefined) return first.plants
    const serialize = reply.getSerializationFunction('200') as unknown as Serialize
    reply.type('application/json')
    const rest = plants.remainingPages(user, first.rest, reply.raw)
    // Of a stream that answers HEAD all would be read, and dropped.
    const parts = request.method === 'HEAD' ? [] : toJson(first, rest, serialize, { answer: reply.raw, hold })
    return Readable.from(parts, { objectMode: false }) as never
  })
}

function deletePlant (app: App, plants: Plants): void {
  app.delete('/plants/:id', {
    onRequest: requireWriteAccess,
    config: { errors: [plantErrors.PLANT_NOT_FOUND, errors.TOKEN_READ_ONLY] },
    schema: {
      operationId: 'deletePlant',
      tags: ['Plants'],
      summary: 'Delete a plant',
      description: 'Deletes one of your plants. An id that is unused, already deleted ' +
        'or only another user\'s gets the same 404.',
      params: PlantParamsSchema,
      querystring: NoQuerySchema,
      response: { 204: Type.Null({ description: 'The plant is deleted' }) }
    }
  }, async (request, reply) => {
    const wasThere = await plants.delete(request.caller.user, request.params.id)
    if (!wasThere) throw new ApiError(plantErrors.PLANT_NOT_FOUND)
    // With nothing to send: of null Fastify would first make JSON.
    reply.code(204)
  })
}

type Serialize = (plants: Plant[]) => string

/** A shorter list is sent and forgotten: the system's buffers take it whole. */
const longText = 65_536

interface Reader {
  answer: ServerResponse
  /** To be called with how much of it is in memory. */
  hold: (bytes: number) => void
}

/**
 * The JSON of a long list, a page at a time: one who reads slowly holds the text of
 * a page and nothing else, and who waits for the next page nothing at all.
 */
async function * toJson (first: Page, rest: AsyncIterable<Page>, serialize: Serialize, reader: Reader) {
  const textOf = ({ plants, bytes }: Page) => {
    reader.hold(bytes)
    return serialize(plants.splice(0)).slice(1, -1)
  }
  yield `[${textOf(first)}`
  await taken(reader)
  // While it waits for the next piece a stream keeps the one before in memory.
  yield ''
  for await (const page of rest) {
    if (page.plants.length === 0) continue
    yield `,${textOf(page)}`
    await taken(reader)
    yield ''
  }
  yield ']'
}

/** A stream by itself would have the next page read before its reader has taken this one. */
async function taken ({ answer, hold }: Reader): Promise<void> {
  const { socket } = answer
  if (socket?.writableNeedDrain) {
    const { promise, resolve } = Promise.withResolvers<void>()
    for (const event of ['drain', 'close']) socket.once(event, resolve)
    await promise
    for (const event of ['drain', 'close']) socket.off(event, resolve)
  }
  hold(0)
}
