// Whether the parts of a request are what the schemas of its route say, and the sentence when they are not.
import { Kind, type TSchema } from '@sinclair/typebox'
import { TypeCompiler, ValueErrorType, type ValueError } from '@sinclair/typebox/compiler'
import type { FastifySchemaCompiler } from 'fastify'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'
import { int64Range, settlerFor } from './int64.ts'
import { fieldsOf, describeType } from './types.ts'

/** Where in a part something is wrong, and what was expected there. */
type Fault = Pick<ValueError, 'path' | 'schema' | 'value'> & { type?: ValueErrorType }

// By the names that Fastify has for the parts.
const refusals = {
  body: refuseBody,
  headers: refuseBody,
  params: ({ path, schema }: Fault) =>
    refusal(errors.PATH_PARAMETER_INVALID,
      `The ${nameOf(path)} in the path must be ${describeType(schema)}.`),
  querystring: ({ path, schema }: Fault) =>
    refusal(errors.QUERY_PARAMETER_INVALID, `${nameOf(path)} must be ${describeType(schema)}, given once.`)
}

/**
 * Gives the integers of a part of a request their exact value, checks it, and
 * changes nothing else of it: neither TypeBox's own compiler for Fastify nor
 * Ajv would, say, delete plant 1 for /plants/1.5 otherwise.
 */
export const compileValidator: FastifySchemaCompiler<TSchema> = ({ schema, httpPart }) => {
  const check = TypeCompiler.Compile(schema)
  const settle = settlerFor(schema)
  const refuse = refusals[httpPart as keyof typeof refusals]
  return (value) => {
    const holder = { value }
    settle?.(holder, 'value')
    if (check.Check(holder.value)) return holder
    return { error: refuse(check.Errors(holder.value).First() as ValueError) }
  }
}

function refuseBody ({ type, path, schema, value }: Fault): ApiError {
  const kind = schema[Kind]
  if (path === '' && kind === 'Object') {
    return refusal(errors.BODY_NOT_OBJECT, `The body must be a JSON object${fieldsOf(schema)}.`)
  }
  const field = path === '' ? 'The body' : nameOf(path)
  if (type === ValueErrorType.ObjectAdditionalProperties) {
    return refusal(errors.FIELD_INVALID, `${field} must be left out.`)
  }
  if (kind === 'Int64' && value === Infinity) {
    return refusal(errors.INT64_OUT_OF_RANGE, `${field} must be ${int64Range}.`)
  }
  const error = value === undefined ? errors.FIELD_MISSING : errors.FIELD_INVALID
  return refusal(error, `${field} must be ${describeType(schema)}.`)
}

const refusal = (kind: ErrorDefinition, message: string) => new ApiError(kind, { message })

/** From a JSON pointer to what JavaScript would call it: `pot.height`, `leaves[0]`. */
const nameOf = (path: string) =>
  path.replace(/\/(\d+)(?=\/|$)/g, '[$1]').replaceAll('/', '.').replace(/^\./, '')
    .replaceAll('~1', '/').replaceAll('~0', '~')

/** How a part can be refused that its schema describes: an example of each number, in a caller's words. */
export function possibleErrors (schema: TSchema, httpPart: keyof typeof refusals): ApiError[] {
  const examples = new Map<number, ApiError>()
  for (const fault of faultsIn(schema, '')) {
    if (httpPart !== 'body' && fault.path === '') continue
    const example = refusals[httpPart](fault)
    if (!examples.has(example.number)) examples.set(example.number, example)
  }
  return [...examples.values()]
}

function * faultsIn (schema: TSchema, path: string): Generator<Fault> {
  yield { path, schema, value: null }
  if (schema[Kind] === 'Int64') yield { path, schema, value: Infinity }
  for (const name of schema.required ?? []) {
    yield { path: `${path}/${name}`, schema: schema.properties[name], value: undefined }
  }
  for (const [name, field] of Object.entries<TSchema>(schema.properties ?? {})) {
    yield * faultsIn(field, `${path}/${name}`)
  }
  if (schema[Kind] === 'Array') yield * faultsIn(schema.items, `${path}/0`)
}
