// What all routes of lists share: the query, the cursor, the header `Link`, and the streaming of a long list.
import { Readable } from 'node:stream'
import { Type, type Static, type TSchema } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ApiError, errors } from '../errors.ts'
import { defineType, isInt64Text, LimitText } from '../http/validation.ts'
import type { List } from './lists.ts'
import type { Page } from './pages.ts'

const writeCursor = (id: string) => Buffer.from(id).toString('base64url')
const readCursor = (cursor: string) => Buffer.from(cursor, 'base64url').toString('latin1')

/** A row's id, encoded by `writeCursor` so that clients do not use the text as an id or an offset. */
const CursorText = defineType<string>('CursorText', 'the value from the Link header of a list',
  { type: 'string' },
  (value) => typeof value === 'string' && isInt64Text(readCursor(value)) &&
    writeCursor(readCursor(value)) === value)

export const ListQuerySchema = Type.Object({
  limit: Type.Optional(LimitText(
    { description: 'Maximum number of results to return; all when absent', examples: [20] }
  )),
  after: Type.Optional(CursorText({
    description: 'Where the list begins: a value from the header `Link`. At the first result when absent'
  }))
}, { additionalProperties: false })
type ListQuery = Static<typeof ListQuerySchema>

/** The schema of the response of a list at the path `/${name}`. The query has `ListQuerySchema`. */
export const listOf = <Schema extends TSchema>(item: Schema, name: string) => Type.Array(item, {
  description: `Your ${name}`,
  headers: {
    link: {
      type: 'string',
      description: 'The next page, while more results follow: a URL relative to this one (RFC 8288)',
      examples: [`<${name}?limit=20&after=NDM>; rel="next"`]
    }
  }
})

/** The errors of a route that calls `sendList`. */
export const listErrors = [errors.HTTP_TOO_OLD]

export const rangeOf = ({ limit, after }: ListQuery) =>
  ({ from: after && readCursor(after), limit: Number(limit ?? Infinity) })

/** Sets the header `Link`, and returns the body for Fastify to send. */
export function sendList<Row> (
  request: FastifyRequest<{ Querystring: ListQuery }>, reply: FastifyReply, { rows, nextId }: List<Row>
): Row[] {
  const isLong = !Array.isArray(rows)
  // HTTP/1.0 has no chunks: the client could not notice a truncated list.
  if (isLong && request.raw.httpVersion === '1.0') throw new ApiError(errors.HTTP_TOO_OLD)
  if (nextId !== undefined) {
    // A relative URL also works behind a proxy that strips a path prefix. Name the last segment of the path:
    // RFC 2396, which Java's URI implements, drops this segment when it resolves a bare query.
    const segment = request.routeOptions.url?.split('/').at(-1)
    reply.header('link', `<${segment}?limit=${request.query.limit}&after=${writeCursor(nextId)}>; rel="next"`)
  }
  // The rows have only fields of the schema. JSON.stringify makes a seventh of the garbage that Fastify's
  // serializer makes.
  reply.type('application/json').serializer(JSON.stringify)
  if (!isLong) return rows
  // For a HEAD request, Fastify would read the whole stream and discard the data.
  return (request.method === 'HEAD' ? Readable.from([]) : streamOf(toJson(rows))) as never
}

/** Yields the JSON of a long list, page by page. */
async function * toJson<Row> (pages: AsyncIterable<Page<Row>>) {
  let separator = '['
  for await (const page of pages) {
    // If this page is empty, the previous page was the last page with rows.
    if (page.count === 0) break
    yield separator + JSON.stringify(page.toRows()).slice(1, -1)
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
