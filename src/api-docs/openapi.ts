// What the API's document says of a route and of the errors it can end in.
import type { TSchema } from '@sinclair/typebox'
import type { FastifySchema } from 'fastify'
import { catalogue, errors, type ErrorDefinition, ErrorSchema, type failures } from '../errors.ts'
import { possibleErrors } from '../http/validation.ts'

interface Schema {
  $id?: string
  type?: string
  description?: string
  examples?: unknown[]
  items?: Schema
  properties?: Record<string, Schema>
}
/** The parts of the document that others refer to, by name. */
export type Components = Record<string, object>
type RouteResponses = ReturnType<typeof failures> & Record<string, Schema>

// How a request can end that never got as far as its operation, whichever that was.
const unreadErrors: ErrorDefinition[] = [
  errors.HTTP_MALFORMED, errors.URL_MALFORMED, errors.HOST_INVALID,
  errors.CONTENT_TYPE_UNSUPPORTED, errors.CONTENT_ENCODING_UNSUPPORTED,
  errors.BODY_TOO_LARGE, errors.BODY_NOT_UTF8, errors.BODY_NOT_JSON,
  errors.BODY_TOO_COMPLEX, errors.BODY_KEY_FORBIDDEN,
  errors.REQUEST_TIMEOUT, errors.URL_TOO_LONG, errors.EXPECTATION_UNKNOWN, errors.HEADERS_TOO_LARGE
]
const failureErrors: ErrorDefinition[] = [
  errors.OVERLOADED, errors.DATABASE_UNAVAILABLE, errors.DATABASE_SLOW, errors.DATABASE_FULL,
  errors.INTERNAL
]
const tokenErrors: ErrorDefinition[] = [errors.TOKEN_MISSING, errors.TOKEN_INVALID]

const statusTexts: Record<number, string> = {
  400: 'The request is at fault and fails again if repeated as it is.',
  401: 'The token is missing or not valid.'
}

const headerTexts: Record<string, string> = {
  'www-authenticate': 'The scheme to authenticate with and, when there was a token, what it lacks (RFC 6750)',
  'retry-after': 'The seconds to wait before the next try'
}

/** What every operation can end in, told once for all. */
export const sharedResponses = () => ({
  Unread: answerWith('The request could not be read, whatever it asked for.', unreadErrors),
  Failed: inFull(answerWith(
    'The service could not answer: repeat it, see the rule under Errors.', failureErrors))
})

// The plugin does this to the headers of a route's answers, but not to those of shared ones.
const inFull = ({ headers = {}, ...answer }: ReturnType<typeof answerWith>) =>
  ({ ...answer, headers: mapValues(headers, ({ description, ...schema }) => ({ description, schema })) })

/**
 * Turns a route's schema into what the document says of it: every answer, the
 * likeliest first, with an example of each error.
 */
export function describeRoute (
  { body, response, ...schema }: FastifySchema, components: Components
): FastifySchema {
  const { params, querystring } = schema as Record<string, TSchema | undefined>
  const jsonOf = (schema: Schema) => ({ schema: moveToComponents(schema, components) })
  const { '4xx': { errors: ownErrors }, '5xx': _, ...successes } = response as RouteResponses
  const responses: Record<string, object> = {}
  for (const [status, success] of Object.entries(successes)) {
    responses[status] = success.type === 'null'
      ? success
      : {
          description: success.description,
          content: { 'application/json': { ...jsonOf(success), example: exampleOf(success) } }
        }
  }
  const refusals: ErrorDefinition[] = [
    ...ownErrors,
    ...body === undefined ? [] : possibleErrors(body as TSchema, 'body'),
    ...params === undefined ? [] : possibleErrors(params, 'params'),
    ...querystring === undefined ? [] : possibleErrors(querystring, 'querystring'),
    ...tokenErrors
  ]
  for (const [status, kinds] of Map.groupBy(refusals, statusOf)) {
    responses[status] = answerWith(statusTexts[status] ?? kinds[0]?.message as string, kinds)
  }
  moveToComponents(ErrorSchema, components)
  return {
    ...schema,
    ...body !== undefined && { body: { content: { 'application/json': jsonOf(body as Schema) } } },
    response: responses
  }
}

const statusOf = ({ number }: ErrorDefinition) => Math.floor(number / 100)

const answerWith = (description: string, kinds: ErrorDefinition[]) => ({
  description,
  ...describeHeaders(kinds),
  content: {
    'application/json': {
      schema: { $ref: '#/components/schemas/Error' },
      examples: Object.fromEntries(kinds.map(({ number, message }) => {
        const { name, message: summary } = catalogue.get(number) as ErrorDefinition
        return [name, { summary: `${number} ${name}: ${summary}`, value: { error: number, message } }]
      }))
    }
  }
})

/** Every error as a table in Markdown. */
export const describeErrors = () => [
  '| error | name | message | repeat it? |',
  '|---|---|---|---|',
  ...[...catalogue.values()].toSorted((a, b) => a.number - b.number).map((kind) =>
    `| ${kind.number} | ${kind.name} | ${kind.message} | ${repeats(kind)} |`.replaceAll('_', '\\_'))
].join('\n')

const repeats = (kind: ErrorDefinition) => [errors.OVERLOADED, errors.REQUEST_TIMEOUT].includes(kind)
  ? 'yes'
  : statusOf(kind) < 500 ? 'no' : 'yes; a write may have happened'

interface Header { type: 'string', description?: string, examples: string[] }

function describeHeaders (errors: ErrorDefinition[]): { headers?: Record<string, Header> } {
  const headers: Record<string, Header> = {}
  for (const [name, value] of errors.flatMap(({ headers = {} }) => Object.entries(headers))) {
    const header = headers[name] ??= { type: 'string', description: headerTexts[name], examples: [] }
    if (!header.examples.includes(value)) header.examples.push(value)
  }
  return Object.keys(headers).length === 0 ? {} : { headers }
}

/**
 * Gives a schema that has an id one place in the document, so that generated
 * clients get one type of that name.
 */
function moveToComponents ({ $id, ...schema }: Schema, components: Components): object {
  const { items, properties } = schema
  const move = (part: Schema) => moveToComponents(part, components)
  const moved: Schema = {
    ...schema,
    ...items && { items: move(items) },
    ...properties && { properties: mapValues(properties, move) }
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
