// Describes each route and its possible errors for the OpenAPI document.
import type { FastifySchema, RouteOptions } from 'fastify'
import { scopeOf } from '../access/bearer.ts'
import { catalogue, errors, scopeMissing, statusOf, type ErrorDefinition } from '../errors.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The errors that this operation has in addition to `commonErrors`. */
    errors?: ErrorDefinition[]
  }
}

interface Schema {
  $id?: string
  type?: string
  description?: string
  examples?: unknown[]
  items?: Schema
  properties?: Record<string, Schema>
  /** Only in the schema of a response. */
  headers?: object
}

const bodyErrors =
  [errors.BODY_NOT_OBJECT, errors.FIELD_MISSING, errors.FIELD_INVALID, errors.INT64_OUT_OF_RANGE]

// No operation on a resource has the last four errors.
const specialErrors = [
  ...bodyErrors, errors.PATH_PARAMETER_INVALID, errors.HTTP_TOO_OLD,
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

const headerDescriptions: Record<string, string> = {
  'www-authenticate': 'The authentication scheme and, when a token was sent, what it lacks (RFC 6750)',
  'retry-after': 'The number of seconds to wait before the next try'
}

export const jwtScheme = 'identityProvider'

/** Adds all possible responses, with examples, to a route's schema. Documents JWTs if `issuer` is set. */
export function describeRoute (
  { body, response, ...schema }: FastifySchema, route: RouteOptions, issuer: string | undefined
) {
  const responses: Record<string, object> = {}
  for (const [status, { headers, ...success }] of Object.entries(response as Record<string, Schema>)) {
    const content = jsonContent(success, { example: exampleOf(success) })
    responses[status] = success.type === 'null'
      ? success
      : { description: success.description, ...headers && { headers }, content }
  }
  const scope = scopeOf(String(route.method), route.url)
  const possibleErrors = [
    ...route.config?.errors ?? [],
    ...scope.endsWith(':read') ? [] : [errors.TOKEN_READ_ONLY],
    scopeMissing(scope),
    ...body === undefined ? [] : bodyErrors,
    ...schema.params === undefined ? [] : [errors.PATH_PARAMETER_INVALID],
    ...commonErrors
  ]
  for (const [status, definitions] of Map.groupBy(possibleErrors, ({ number }) => statusOf(number))) {
    responses[status] = describeErrorResponse(statusDescriptions[status], definitions)
  }
  const request = body === undefined ? {} : { body: toReference(body as Schema) }
  const security: FastifySchema['security'] = [{ bearerAuth: [] }, { [jwtScheme]: [scope] }]
  return { ...schema, ...request, ...issuer !== undefined && { security }, response: responses }
}

const jsonContent = (schema: Schema, examples = {}) =>
  ({ 'application/json': { schema: toReference(schema), ...examples } })

/** If a schema has an id, returns a reference, so that generated clients have one type for the schema. */
function toReference ({ $id, items, ...schema }: Schema): object {
  if ($id !== undefined) return { $ref: `${$id}#` }
  return items === undefined ? schema : { ...schema, items: toReference(items) }
}

function describeErrorResponse (description: string | undefined, definitions: ErrorDefinition[]) {
  const headers: Record<string, { type: 'string', description: string | undefined, examples: string[] }> = {}
  for (const [name, value] of definitions.flatMap(({ headers }) => Object.entries(headers))) {
    const header = headers[name] ??= { type: 'string', description: headerDescriptions[name], examples: [] }
    if (!header.examples.includes(value)) header.examples.push(value)
  }
  const examples = Object.fromEntries(definitions.map(({ name, number, message }) =>
    [name, { summary: `${number} ${name}`, value: { error: number, message } }]))
  return {
    description: description ?? definitions[0]?.message,
    ...Object.keys(headers).length > 0 && { headers },
    content: jsonContent({ $id: 'Error' }, { examples })
  }
}

export const describeErrors = () => [
  '| error | name | message | retry? |',
  '|---|---|---|---|',
  ...[...catalogue.values()].toSorted((a, b) => a.number - b.number).map((definition) =>
    `| ${definition.number} | ${definition.name} | ${definition.message} | ${retryAdvice(definition)} |`
      .replaceAll('_', '\\_'))
].join('\n')

function retryAdvice (definition: ErrorDefinition): string {
  const retryable = [errors.OVERLOADED, errors.REQUEST_TIMEOUT, errors.RATE_LIMITED, errors.ADDRESS_LIMITED,
    errors.KEYS_UNAVAILABLE]
  if (retryable.includes(definition)) return 'yes'
  const isClientError = definition.number < 50000 || definition === errors.METHOD_UNKNOWN
  return isClientError ? 'no' : 'yes; a write may have happened'
}

/** Leaves out fields that have no example. */
function exampleOf ({ examples, items, properties }: Schema): unknown {
  if (examples !== undefined) return examples[0]
  if (items !== undefined) return [exampleOf(items)]
  return properties &&
    Object.fromEntries(Object.entries(properties).map(([name, field]) => [name, exampleOf(field)]))
}
