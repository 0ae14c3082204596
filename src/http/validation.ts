// Checks the body, path parameters and query of a request against the schemas of its route.
import { Kind, type TSchema } from '@sinclair/typebox'
import { TypeCompiler, ValueErrorType, type ValueError } from '@sinclair/typebox/compiler'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'
import { int64Range } from './int64.ts'
import { typeDescriptions } from './types.ts'

const toApiErrorByPart: Record<string, (error: ValueError) => ApiError> =
  { body: bodyError, params: pathError, querystring: queryError }

/** Converts no values. Ajv would accept 5 as a name. TypeBox's Fastify compiler would accept 1.5 as an id. */
export function compileValidator ({ schema, httpPart }: { schema: TSchema, httpPart: string }) {
  const toApiError = toApiErrorByPart[httpPart]
  if (toApiError === undefined) throw new Error(`Validation supports no schema of ${httpPart}.`)
  const check = TypeCompiler.Compile(schema)
  return (value: unknown) => check.Check(value)
    ? { value }
    : { error: toApiError(check.Errors(value).First() as ValueError) }
}

function bodyError (error: ValueError): ApiError {
  const { path, schema, value } = error
  if (path === '') {
    return reject(errors.BODY_NOT_OBJECT, `The body must be a JSON object with ${fieldNames(schema)}.`)
  }
  if (value === undefined) {
    const expected = typeDescriptions[schema[Kind]]
    const hint = expected === undefined ? '' : `: expected ${expected}`
    return reject(errors.FIELD_MISSING, `${nameOf(error)} is missing${hint}.`)
  }
  if (schema[Kind] === 'Int64' && typeof value === 'number' && Math.abs(value) >= 2 ** 63) {
    return reject(errors.INT64_OUT_OF_RANGE, `${nameOf(error)} must be ${int64Range}.`)
  }
  return reject(errors.FIELD_INVALID, `${nameOf(error)} ${requirementOf(error)}.`)
}

function pathError (error: ValueError): ApiError {
  return reject(errors.PATH_PARAMETER_INVALID, `The ${nameOf(error)} in the path ${requirementOf(error)}.`)
}

function queryError (error: ValueError): ApiError {
  const name = nameOf(error)
  if (error.type !== ValueErrorType.ObjectAdditionalProperties) {
    return reject(errors.QUERY_PARAMETER_INVALID, `${name} ${requirementOf(error)}, given once.`)
  }
  const known = Object.keys(error.schema.properties).join(' or ') || 'none'
  // Do not repeat a long name: it may be a token, and tokens must not get into the log.
  const shown = /^\w{1,20}$/.test(name) ? name : 'This name'
  return reject(errors.QUERY_PARAMETER_INVALID, `${shown} is not a parameter here: use ${known}.`)
}

const reject = (definition: ErrorDefinition, message: string) => new ApiError(definition, { message })

/** Turns `/maker/name` into `maker.name`. */
const nameOf = ({ path }: ValueError) => path.slice(1).replaceAll('/', '.')

function requirementOf ({ schema, message }: ValueError): string {
  const description = typeDescriptions[schema[Kind]]
  return description === undefined ? `is not valid: ${message}` : `must be ${description}`
}

/** Returns a list such as "id, name, tag (optional)". */
const fieldNames = ({ properties, required = [] }: TSchema) =>
  Object.keys(properties).map((name) => required.includes(name) ? name : `${name} (optional)`).join(', ')
