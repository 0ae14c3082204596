// A domain for the tests of src/table-gateway/. Its table has a column of each SQL type.
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import { Type, type Static } from '@sinclair/typebox'
import type { Test } from 'tap'
import type { Domain } from '../../src/domains.ts'
import { ApiError, defineErrors } from '../../src/errors.ts'
import { Int64, Int64Text, Time, UnicodeText } from '../../src/http/validation.ts'
import { createGateway } from '../../src/table-gateway/gateway.ts'
import {
  listErrors, listOf, ListQuerySchema, rangeOf, sendList
} from '../../src/table-gateway/list-routes.ts'
import { defineTable } from '../../src/table-gateway/table.ts'
import { startApp } from './app.ts'
import { createDatabase, sql } from './database.ts'

const properties = {
  title: UnicodeText({ description: 'The title of the book', examples: ['Flora'] }),
  subTitle: Type.Optional(UnicodeText({ description: 'The subtitle of the book', examples: ['A history'] })),
  lastReadAt: Type.Optional(Time({ description: 'In UTC', examples: ['2026-05-01T08:30:00.000Z'] })),
  weight: Type.Optional(Type.Number({ description: 'In kilograms', examples: [0.25] })),
  pages: Type.Optional(Type.Integer({ minimum: 0, maximum: 2 ** 31 - 1, examples: [320] })),
  isLent: Type.Optional(Type.Boolean({ examples: [true] }))
}
export const BookSchema = Type.Object(properties, { $id: 'Book' })
const NewBookSchema = Type.Object({ id: Int64({ description: 'The id' }), ...properties }, { $id: 'NewBook' })
export type Book = Static<typeof BookSchema>

export const booksTable = defineTable<Book>('books', NewBookSchema, {
  subTitle: 'text',
  title: 'text',
  lastReadAt: 'timestamptz',
  weight: 'double precision',
  pages: 'integer',
  isLent: 'boolean'
})

const { BOOK_EXISTS, BOOK_STORED, BOOK_NOT_FOUND } = defineErrors({
  BOOK_EXISTS: [40098, 'You already have this book.'],
  BOOK_STORED: [40099, 'This book is stored.'],
  BOOK_NOT_FOUND: [40498, 'You have no such book.']
})

type Books = ReturnType<typeof createGateway<Book>>

const bookRoutes: FastifyPluginAsyncTypebox<{ books: Books }> = async (app, { books }) => {
  const schema = { body: NewBookSchema, response: { 200: BookSchema } }
  app.post('/books', { schema }, async ({ identity, body }) => {
    if (await books.create(identity, body)) return body
    throw new ApiError(await books.has(identity, body) ? BOOK_STORED : BOOK_EXISTS)
  })
  app.get('/books', {
    config: { errors: listErrors },
    schema: { querystring: ListQuerySchema, response: { 200: listOf(BookSchema, 'books') } }
  }, async (request, reply) =>
    sendList(request, reply, await books.list(request.identity, rangeOf(request.query), reply.raw)))
  const params = Type.Object({ id: Int64Text({ description: 'The id' }) })
  app.delete('/books/:id', { schema: { params, response: { 204: Type.Null() } } }, async (request, reply) => {
    if (!await books.delete(request.identity, request.params.id)) throw new ApiError(BOOK_NOT_FOUND)
    reply.code(204)
  })
}

export const registerBooks: Domain['register'] = (app, database, config, budget) => {
  app.register(bookRoutes, { books: createGateway<Book>(database, booksTable, config, budget) })
}

/** Creates a database with the table of books. */
export async function createLibrary (t: Test): Promise<string> {
  const url = await createDatabase(t)
  await sql(url, `create table books (owner text collate "C" not null, id bigint not null,
    title text not null, sub_title text, last_read_at timestamptz, weight double precision, pages integer,
    is_lent boolean, created_at timestamptz not null default now(), primary key (owner, id))`)
  return url
}

/** Like `startApp`, with books instead of plants. */
export async function startLibrary (t: Test, environment: Record<string, string> = {}) {
  const DATABASE_URL = environment.DATABASE_URL ?? await createLibrary(t)
  return startApp(t, { ...environment, DATABASE_URL }, registerBooks, '/books')
}

export interface StoredBook { id: bigint, title: string, subTitle?: string }

export async function storeBooks (url: string, user: string, books: StoredBook[]): Promise<void> {
  await sql(url, `insert into books (owner, id, title, sub_title)
    select $1, * from unnest($2::bigint[], $3::text[], $4::text[])`,
  [user, books.map(({ id }) => id), books.map(({ title }) => title), books.map(({ subTitle }) => subTitle)])
}

/** Returns the body of a list. A test compares texts, because a comparison of 4,000 objects takes long. */
export const bodyOf = (books: StoredBook[]) => JSON.stringify(books.map(({ id, ...shown }) => shown))
