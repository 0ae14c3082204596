// Generates the OpenAPI document from the routes and serves it at /openapi.json. The root / links to it.
import { readFile } from 'node:fs/promises'
import swagger from '@fastify/swagger'
import { Type, type SchemaOptions } from '@sinclair/typebox'
import type { FastifyInstance, FastifySchema, RouteOptions } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import { scopeOf } from '../access/bearer.ts'
import {
  catalogue, errors, ErrorSchema, overloaded, scopeMissing, statusOf, type ErrorDefinition
} from '../errors.ts'
import { addressOf } from '../http/responses.ts'
import type { MemoryBudget } from '../scheduling/memory-budget.ts'
import { serveDocs } from './docs-page.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The errors that this operation has in addition to `commonErrors`. */
    errors?: ErrorDefinition[]
  }
}

const bodyErrors =
  [errors.BODY_NOT_OBJECT, errors.FIELD_MISSING, errors.FIELD_INVALID, errors.INT64_OUT_OF_RANGE]

const pathErrors = [errors.PATH_PARAMETER_INVALID, errors.URL_MALFORMED, errors.URL_TOO_LONG]

// No operation on a resource has the last four errors.
const specialErrors = [
  ...bodyErrors, ...pathErrors, errors.HTTP_TOO_OLD,
  errors.TOKEN_READ_ONLY, errors.TOKEN_SCOPE_MISSING,
  errors.PATH_UNKNOWN, errors.METHOD_NOT_ALLOWED, errors.METHOD_UNKNOWN, errors.STOPPING
]
const commonErrors = Object.values(errors).filter((error) => !specialErrors.includes(error))

const statusDescriptions: Record<number, string> = {
  400: 'The request is wrong and fails again if you repeat it unchanged.',
  401: 'The token is missing or not valid.',
  429: 'Too many requests or invalid tokens. Retry after a pause.',
  503: 'The service cannot respond now. Retry after a pause.'
}

const errorHeaders = {
  'www-authenticate': 'The authentication scheme and, when a token was sent, what it lacks (RFC 6750)',
  'retry-after': 'The number of seconds to wait before the next try'
}

const describeHeader = (description: string, ...examples: string[]) =>
  ({ type: 'string', description, examples })

const commonHeaders = {
  'x-request-id': describeHeader('The id of the request in the log of the service', 'wKxJx2QeVJ0P-7')
}

/** The headers of responses to a valid token (errors, too), if the operator limits the requests of users. */
const rateHeaders = {
  ratelimit: describeHeader(
    'If requests are limited: how many are left, and the seconds until one more', '"user";r=99;t=1'),
  'ratelimit-policy': describeHeader(
    'If requests are limited: how many you may send at once, and again after a pause of how many seconds',
    '"user";q=100;w=1')
}

const bearer = { type: 'http', scheme: 'bearer' } as const
const jwtScheme = 'identityProvider'

/** Documents all tagged routes at /openapi.json, and at /docs if `docs` is set. Call before adding routes. */
export async function registerApiDocs (
  app: FastifyInstance, budget: MemoryBudget, { docs, issuer }: { docs: boolean, issuer: string | undefined }
): Promise<void> {
  app.addSchema(ErrorSchema)
  const text = await readFile(new URL('description.md', import.meta.url), 'utf8')
  const [description, ...sections] = text.replace('{{errors}}', describeErrors).split(/^## /m)
  const securitySchemes = {
    bearerAuth: { ...bearer, description: 'A token from `plant-store token create <user>`' },
    ...issuer !== undefined && {
      [jwtScheme]: { ...bearer, bearerFormat: 'JWT', description: `An access token of ${issuer}` }
    }
  }
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      // A relative URL stays correct when a proxy adds a path prefix.
      servers: [{ url: '.', description: 'The service this document comes from' }],
      info: {
        title: 'Plant store',
        version: manifest.version,
        description,
        license: { name: 'MIT, for the software', identifier: 'MIT' }
      },
      // A tag without operations becomes a section of text on the page /docs.
      tags: sections.map((section) => {
        const [name, description] = section.split(/\n+(.*)/s) as [string, string]
        return { name, description }
      }),
      security: [{ bearerAuth: [] }],
      components: { securitySchemes }
    },
    hideUntagged: true,
    stripBasePath: false,
    refResolver: { buildLocalReference: ({ $id }) => String($id) },
    transform: ({ schema, url, route }) =>
      ({ url, schema: schema?.tags === undefined ? schema : describeRoute(schema, route, issuer) })
  })

  let document: string | undefined
  app.get('/openapi.json', async function showDocument (request, reply) {
    document ??= `${JSON.stringify(app.swagger(), null, 2)}\n`
    if (!budget.reserve(`docs ${addressOf(request)}`, document.length, reply.raw)) throw overloaded
    return reply.type('application/json').send(document)
  })

  // A client that resolves a `Link` wrongly may request `/?limit=20`. Reject such a request.
  const querystring = Type.Object({}, { additionalProperties: false })
  app.get('/', { schema: { querystring } }, async function showRoot ({ headers }, reply) {
    reply.header('vary', 'accept')
    if (docs && headers.accept?.includes('text/html')) return reply.redirect('./docs')
    return { ...docs && { docs: './docs' }, openapi: './openapi.json' }
  })
  if (docs) serveDocs(app, budget)
}

/** Adds all possible responses, with examples, to a route's schema. Documents JWTs if `issuer` is set. */
function describeRoute ({ body, response, ...schema }: FastifySchema, route: RouteOptions, issuer?: string) {
  const responses: Record<string, object> = {}
  for (const [status, { headers, ...success }] of Object.entries(response as Record<string, SchemaOptions>)) {
    const content = { 'application/json': { schema: toReference(success), example: exampleOf(success) } }
    // The plugin omits the content if the type is `null`.
    const allHeaders = { ...headers, ...commonHeaders, ...rateHeaders }
    responses[status] = { type: success.type, description: success.description, headers: allHeaders, content }
  }
  const scope = scopeOf(route.method, route.url)
  const possibleErrors = [
    ...route.config?.errors ?? [],
    ...scope.endsWith(':read') ? [] : [errors.TOKEN_READ_ONLY],
    scopeMissing(scope),
    ...body === undefined ? [] : bodyErrors,
    ...schema.params === undefined ? [] : pathErrors,
    ...commonErrors
  ]
  for (const [status, definitions] of Map.groupBy(possibleErrors, ({ number }) => statusOf(number))) {
    responses[status] = describeErrorResponse(status, definitions)
  }
  const request = body === undefined ? {} : { body: toReference(body as SchemaOptions) }
  const security: FastifySchema['security'] = [{ bearerAuth: [] }, { [jwtScheme]: [scope] }]
  return { ...schema, ...request, ...issuer !== undefined && { security }, response: responses }
}

/** If a schema has an id, returns a reference, so that generated clients have one type for the schema. */
function toReference ({ $id, items, ...schema }: SchemaOptions): object {
  if ($id !== undefined) return { $ref: `${$id}#` }
  return items === undefined ? schema : { ...schema, items: toReference(items) }
}

/** Leaves out fields that have no example. */
function exampleOf ({ examples, items, properties }: SchemaOptions): unknown {
  if (examples !== undefined) return examples[0]
  if (items !== undefined) return [exampleOf(items)]
  return properties && Object.fromEntries(
    Object.entries<SchemaOptions>(properties).map(([name, field]) => [name, exampleOf(field)]))
}

function describeErrorResponse (status: number, definitions: ErrorDefinition[]) {
  const headers = Object.entries(errorHeaders).flatMap(([name, description]) => {
    const examples = new Set(definitions.flatMap(({ headers }) => headers[name] ?? []))
    return examples.size === 0 ? [] : [[name, describeHeader(description, ...examples)]]
  })
  // The other errors come before the check of the token.
  const isLimited = [400, 403, 404, 429, 500, 503].includes(status)
  const examples = Object.fromEntries(definitions.map(({ name, number, message }) =>
    [name, { summary: `${number} ${name}`, value: { error: number, message } }]))
  return {
    description: statusDescriptions[status] ?? definitions[0]?.message,
    headers: { ...Object.fromEntries(headers), ...commonHeaders, ...isLimited && rateHeaders },
    content: { 'application/json': { schema: toReference(ErrorSchema), examples } }
  }
}

const describeErrors = () => [
  '| error | name | message | retry? |',
  '|---|---|---|---|',
  ...[...catalogue.values()].toSorted((a, b) => a.number - b.number).map((definition) =>
    `| ${definition.number} | ${definition.name} | ${definition.message} | ${retryAdvice(definition)} |`
      .replaceAll('_', '\\_'))
].join('\n')

function retryAdvice (definition: ErrorDefinition): string {
  const retryable = [errors.OVERLOADED, errors.REQUEST_TIMEOUT, errors.RATE_LIMITED, errors.ADDRESS_LIMITED,
    errors.KEYS_UNAVAILABLE, errors.STOPPING]
  if (retryable.includes(definition)) return 'yes'
  const isClientError = definition.number < 50000 || definition === errors.METHOD_UNKNOWN
  return isClientError ? 'no' : 'yes; a write may have happened'
}
