// The HTTP operations on plants and their errors.
import { Readable } from 'node:stream'
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import { Type } from '@sinclair/typebox'
import type { FastifyReply } from 'fastify'
import { ApiError, defineErrors, errors } from '../errors.ts'
import { defineType, isInt64, LimitText } from '../http/validation.ts'
import type { Page } from './pages.ts'
import { NewPlantSchema, PlantParamsSchema, PlantSchema, type Plant } from './plant.ts'
import type { Plants } from './repository.ts'

const { ID_TAKEN, PLANT_NOT_FOUND } = defineErrors({
  ID_TAKEN: [40014, 'You already have a plant with this id.'],
  PLANT_NOT_FOUND: [40402, 'You have no plant with this id.']
})

export const writeCursor = (id: string) => Buffer.from(id).toString('base64url')
const readCursor = (cursor: string) => Buffer.from(cursor, 'base64url').toString('latin1')

/** A plant's id, encoded by `writeCursor` so that clients do not use the text as an id or an offset. */
const CursorText = defineType<string>('CursorText', 'the value from the Link header of a list',
  { type: 'string' },
  (value) => typeof value === 'string' && isInt64(readCursor(value)) &&
    writeCursor(readCursor(value)) === value)

const ListQuerySchema = Type.Object({
  limit: Type.Optional(LimitText(
    { description: 'Maximum number of results to return; all when absent', examples: [20] }
  )),
  after: Type.Optional(CursorText({
    description: 'Where the list begins: a value from the header `Link`. At the first plant when absent'
  }))
}, { additionalProperties: false })

const ListSchema = Type.Array(PlantSchema, {
  description: 'Your plants',
  headers: {
    link: {
      type: 'string',
      description: 'The next page, while more plants follow: a URL relative to this one (RFC 8288)',
      examples: ['<plants?limit=20&after=NDM>; rel="next"']
    }
  }
})

export const plantsRoutes: FastifyPluginAsyncTypebox<{ plants: Plants }> = async (app, { plants }) => {
  app.addSchema(PlantSchema)
  app.addSchema(NewPlantSchema)

  app.post('/plants', {
    config: { errors: [ID_TAKEN] },
    schema: {
      operationId: 'createPlant',
      tags: ['Plants'],
      summary: 'Create a plant',
      description: 'Stores a plant under an id that you choose. Keep the id: responses contain no ids. ' +
        'If you already have a plant with this id, the stored plant does not change.',
      body: NewPlantSchema,
      response: { 200: PlantSchema }
    }
  }, async (request) => {
    if (!await plants.create(request.identity, request.body)) throw new ApiError(ID_TAKEN)
    // The response schema drops the id and unknown fields.
    return request.body
  })

  app.get('/plants', {
    config: { errors: [errors.HTTP_TOO_OLD] },
    schema: {
      operationId: 'listPlants',
      tags: ['Plants'],
      summary: 'List your plants',
      description: 'Returns your plants, without their ids, in ascending order of id: ' +
        'all of them, or the first `limit`. While more follow, the header `Link` leads to the next page.',
      querystring: ListQuerySchema,
      response: { 200: ListSchema }
    }
  }, async (request, reply) => {
    const { limit, after } = request.query
    const range = { from: after && readCursor(after), limit: Number(limit ?? Infinity) }
    const { plants: list, beyond } = await plants.list(request.identity, range, reply.raw)
    // HTTP/1.0 has no chunks: the client could not notice a truncated list.
    if (!Array.isArray(list) && request.raw.httpVersion === '1.0') throw new ApiError(errors.HTTP_TOO_OLD)
    if (beyond !== undefined) {
      // A relative URL also works behind a proxy that strips a path prefix. Name the path's last segment: Java's
      // URI follows RFC 2396, and drops this segment when it resolves a bare query.
      reply.header('link', `<plants?limit=${limit}&after=${writeCursor(beyond)}>; rel="next"`)
    }
    if (Array.isArray(list)) return list
    reply.type('application/json')
    // For a HEAD request, Fastify would read the whole stream and discard the data.
    return (request.method === 'HEAD' ? Readable.from([]) : streamOf(toJson(list, reply))) as never
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

/** Yields the JSON of a long list, page by page. */
async function * toJson (pages: AsyncIterable<Page>, reply: FastifyReply) {
  const serialize = reply.getSerializationFunction('200') as unknown as (plants: Plant[]) => string
  let separator = '['
  for await (const page of pages) {
    // If this page is empty, the previous page was the last page with plants.
    if (page.count === 0) break
    yield separator + serialize(page.toPlants()).slice(1, -1)
    separator = ','
  }
  yield ']'
}

/** Unlike `Readable.from`, takes a page only when the socket has sent the previous page. */
const streamOf = (pages: AsyncGenerator<string, void>) => new Readable({
  highWaterMark: 0,
  read () {
    pages.next().then(({ value }) => this.push(value ?? null), (error) => this.destroy(error))
  }
})
