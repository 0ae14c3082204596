// The API described from its own routes: a document for programs, a page for people.
import { readFile } from 'node:fs/promises'
import swagger from '@fastify/swagger'
import type { TSchema } from '@sinclair/typebox'
import type { FastifyInstance, FastifySchema, RouteOptions } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import { catalogue, errors, type ErrorKind, ErrorSchema, type failures } from '../errors.ts'
import { servePageFiles } from './page-files.ts'
import { refusalsOf } from '../http/validation.ts'

type Schema = { $id?: string, type?: string, description?: string, examples?: unknown[], items?: Schema, properties?: Record<string, Schema> }
type Components = Record<string, object>
type RouteResponses = ReturnType<typeof failures> & Record<string, Schema>

// A function, since domains define their errors as they are loaded.
const describe = () => `Keeps plants: create one, list yours, delete one.

## Access

Every operation needs a bearer token: \`Authorization: Bearer plant_…\`. The operator makes tokens with
\`plant-store token create <user>\`, some of them for reading only. A token stands for a user, and a user sees
nobody else's plants: two users can each have a plant 42.

## Ids

An id is a 64-bit integer of your choice. It is never rounded here, but may be on your side: a number in JavaScript
is exact only up to 9007199254740991, so take a \`BigInt\` for larger ids and write it by \`JSON.rawJSON\`.

## Errors

Whatever goes wrong, the body is an object with a number, \`error\`, for your program and a text, \`message\`, for a
person. The number is the HTTP status times 100 plus a running number. It never changes its meaning; the text may
say more than it does here. 401 and 403 come with \`WWW-Authenticate\`, 405 with \`Allow\`, 503 with \`Retry-After\`.

After a cut connection or a 5xx other than 50302 you cannot know whether a create or a delete took effect. Send it
again: 40014 to a repeated create of a new id, or 40402 to a repeated delete, tells you that it had.

<details><summary>Every error</summary>

| error | message |
|-------|---------|
${[...catalogue.values()].toSorted((a, b) => a.number - b.number).map(({ number, message }) => `| ${number} | ${message.replaceAll('_', '\\_')} |`).join('\n')}

</details>

This document is served at [/openapi.json](/openapi.json).`

// A page that shows callers' plants and holds their token runs nothing but
// these assets and talks to nothing but this service.
const contentSecurityPolicy = {
  'default-src': "'none'",
  'script-src': "'self'",
  'style-src': "'self'",
  'img-src': "'self' data:",
  'connect-src': "'self'",
  'base-uri': "'none'",
  'form-action': "'none'",
  'frame-ancestors': "'none'"
}

// Swagger UI has a dark mode but leaves switching it on to the page around it.
const followColorScheme = `const dark = matchMedia('(prefers-color-scheme: dark)')
const follow = () => document.documentElement.classList.toggle('dark-mode', dark.matches)
dark.addEventListener('change', follow)
follow()
`

/**
 * Describes the routes that are registered on the app from here on, as far as
 * they carry a tag, at /openapi.json and, if wanted, for people at /docs.
 */
export async function describeApi (app: FastifyInstance, { docs }: { docs: boolean }): Promise<void> {
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: { title: 'Plant store', version: manifest.version, description: describe(), license: { name: 'MIT', identifier: 'MIT' } },
      servers: [{ url: '/', description: 'The service this document comes from' }],
      security: [{ bearerAuth: [] }],
      components: {
        securitySchemes: {
          bearerAuth: { type: 'http', scheme: 'bearer', description: 'A token from `plant-store token create <user>`' }
        }
      }
    },
    hideUntagged: true,
    convertConstToEnum: false,
    transform: ({ schema, url, route, ...document }) => {
      if (schema?.tags === undefined) return { url, schema }
      const components = (document as { openapiObject: { components: { schemas: Components } } }).openapiObject.components.schemas
      return { url, schema: describeRoute(schema, route, components) }
    }
  })

  let text: string | undefined
  app.get('/openapi.json', async function showDocument (_request, reply) {
    text ??= `${JSON.stringify(app.swagger(), null, 2)}\n`
    return reply.type('application/json').send(text)
  })

  if (!docs) return
  const css = await readFile(new URL('reference.css', import.meta.url), 'utf8')
  await app.register(async (page) => {
    servePageFiles(page)
    await registerPage(page, css)
  })
}

async function registerPage (app: FastifyInstance, css: string): Promise<void> {
  await app.register(import('@fastify/swagger-ui'), {
    routePrefix: '/docs',
    staticCSP: contentSecurityPolicy,
    uiConfig: { layout: 'BaseLayout', tryItOutEnabled: true, displayRequestDuration: true },
    theme: {
      title: 'Plant store',
      js: [{ filename: 'color-scheme.js', content: followColorScheme }],
      css: [{ filename: 'page.css', content: css }]
    }
  })
}

// How any request can end, and any that may have a body.
const requestErrors: ErrorKind[] = [errors.HTTP_MALFORMED, errors.URL_MALFORMED, errors.HOST_INVALID, errors.TOKEN_MISSING, errors.TOKEN_INVALID,
  errors.REQUEST_TIMEOUT, errors.EXPECTATION_UNKNOWN, errors.HEADERS_TOO_LARGE, errors.INTERNAL, errors.DATABASE_UNAVAILABLE, errors.DATABASE_SLOW,
  errors.DATABASE_FULL, errors.OVERLOADED]
const parserErrors: ErrorKind[] = [errors.CONTENT_TYPE_UNSUPPORTED, errors.CONTENT_ENCODING_UNSUPPORTED, errors.BODY_TOO_LARGE,
  errors.BODY_NOT_UTF8, errors.BODY_NOT_JSON, errors.BODY_TOO_COMPLEX, errors.BODY_KEY_FORBIDDEN]

const statusTexts: Record<number, string> = {
  400: 'The request is at fault and fails again if repeated as it is.',
  401: 'The token is missing or not valid.',
  503: 'The service cannot answer at the moment.'
}

const headerTexts: Record<string, string> = {
  'www-authenticate': 'The scheme to authenticate with and, when there was a token, what it lacks (RFC 6750)',
  'retry-after': 'The seconds to wait before the next try'
}

/** Turns a route's schema into what the document says of it: every answer, with an example of every error. */
function describeRoute ({ body, response, ...schema }: FastifySchema, { method }: RouteOptions, components: Components): FastifySchema {
  const { params, querystring } = schema as Record<string, TSchema | undefined>
  const { '4xx': { errors: ownErrors }, '5xx': _, ...successes } = response as RouteResponses
  const inJson = (schema: Schema, example?: { example: unknown } | { examples: object }) =>
    ({ content: { 'application/json': { schema: moveToComponents(schema, components), ...example } } })
  const refusals: ErrorKind[] = [
    ...requestErrors,
    ...method === 'GET' ? [] : parserErrors,
    ...body === undefined ? [] : refusalsOf(body as TSchema, 'body'),
    ...params === undefined ? [] : [...refusalsOf(params, 'params'), errors.URL_TOO_LONG],
    ...querystring === undefined ? [] : refusalsOf(querystring, 'querystring'),
    ...ownErrors
  ]
  const responses: Record<string, object> = {}
  for (const [status, success] of Object.entries(successes)) {
    responses[status] = success.type === 'null'
      ? success
      : {
          description: success.description,
          ...inJson(success, { example: exampleOf(success) })
        }
  }
  for (const [status, entries] of Map.groupBy(refusals, ({ number }) => Math.floor(number / 100))) {
    responses[status] = {
      description: statusTexts[status] ?? entries[0]?.message,
      ...describeHeaders(entries),
      ...inJson(ErrorSchema, {
        examples: Object.fromEntries(entries.map(({ number, message }) => [number, { summary: catalogue.get(number)?.message, value: { error: number, message } }]))
      })
    }
  }
  return { ...schema, ...body !== undefined && { body: inJson(body as Schema) }, response: responses }
}

function describeHeaders (errors: ErrorKind[]): { headers?: object } {
  const headers: Record<string, { type: 'string', description?: string, examples: string[] }> = {}
  for (const [name, value] of errors.flatMap(({ headers = {} }) => Object.entries(headers))) {
    const header = headers[name] ??= { type: 'string', description: headerTexts[name], examples: [] }
    if (!header.examples.includes(value)) header.examples.push(value)
  }
  return Object.keys(headers).length === 0 ? {} : { headers }
}

/** Gives a schema that has an id one place in the document, so that generated clients get one type of that name. */
function moveToComponents ({ $id, ...schema }: Schema, components: Components): object {
  const { items, properties } = schema
  const moved: Schema = {
    ...schema,
    ...items && { items: moveToComponents(items, components) },
    ...properties && { properties: mapValues(properties, (property) => moveToComponents(property, components)) }
  }
  if ($id === undefined) return moved
  components[$id] = moved
  return { $ref: `#/components/schemas/${$id}` }
}

/** From the examples of the fields. What is neither given one nor made of such is left out. */
function exampleOf ({ examples, items, properties }: Schema): unknown {
  if (examples !== undefined) return examples[0]
  if (items !== undefined) return [exampleOf(items)]
  return properties && mapValues(properties, exampleOf)
}

const mapValues = <Value, Result>(object: Record<string, Value>, change: (value: Value) => Result) =>
  Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value)]))
