// Defines types of values. Checks the body, path parameters and query of a request against their schemas.
import { Kind, Type, TypeRegistry, type TSchema, type TUnsafe } from '@sinclair/typebox'
import { TypeCompiler, ValueErrorType, type ValueError } from '@sinclair/typebox/compiler'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'
import { int64Range, inInt64Range } from './json.ts'

/** What a value of each kind must be, in words for error messages. A function gets the wrong value. */
const typeDescriptions: Record<string, string | ((value: unknown) => string)> = {}

/** Defines a type of values. `kind` is its name for TypeBox. Throws when another type has the same name. */
export function defineType<Value> (
  kind: string, description: string | ((value: unknown) => string), schema: object,
  check: (value: unknown) => boolean
) {
  if (kind in typeDescriptions) throw new Error(`${kind}: the name is taken`)
  typeDescriptions[kind] = description
  TypeRegistry.Set(kind, (_schema, value) => check(value))
  return (options: { description: string, examples?: unknown[] }): TUnsafe<Value> =>
    Type.Unsafe({ [Kind]: kind, ...schema, ...options })
}

export const isInt64 = (value: unknown): value is number | bigint =>
  typeof value === 'bigint' || Number.isSafeInteger(value)

/** A 64-bit integer in a JSON body. Integers beyond ±2^53 are bigints, all other integers are numbers. */
export const Int64 = defineType<number | bigint>('Int64', `an integer ${int64Range}`,
  { type: 'integer', format: 'int64' }, isInt64)

// Check the length first: BigInt takes time quadratic in the number of digits. Any 18 digits are in range.
export const isInt64Text = (value: unknown): value is string =>
  typeof value === 'string' && value.length <= 20 &&
  /^(0|-?[1-9][0-9]*)$/.test(value) && (value.length <= 18 || inInt64Range(BigInt(value)))

/** A 64-bit integer in a URL, as text. */
export const Int64Text = defineType<string>('Int64Text',
  `a decimal integer ${int64Range}, without + or leading zeros`,
  { type: 'integer', format: 'int64' }, isInt64Text)

/** A count in a query string, as text. */
export const LimitText = defineType<string>('LimitText',
  'a decimal integer from 0 to 2147483647, without + or leading zeros',
  { type: 'integer', format: 'int32', minimum: 0 },
  (value) => isInt64Text(value) && Number(value) >= 0 && Number(value) <= 2147483647)

/** A string that PostgreSQL stores and returns unchanged. */
export const UnicodeText = defineType<string>('UnicodeText',
  (value) => {
    if (typeof value !== 'string') return 'a string'
    if (value.includes('\0')) return 'a string without U+0000'
    return 'a string without lone surrogates (U+D800 to U+DFFF)'
  },
  { type: 'string', pattern: '^[^\\u0000]*$' },
  (value) => typeof value === 'string' && !value.includes('\0') && value.isWellFormed())

/** PostgreSQL has no year 0. */
const isTime = (value: unknown) =>
  typeof value === 'string' && /^(?!0000)\d{4}-/.test(value) && new Date(value).toJSON() === value

/** A time in UTC, in the form of `Date.prototype.toJSON`. The column has the type `timestamptz`. */
export const Time = defineType<string>('Time', 'a time such as 2026-05-01T08:30:00.000Z',
  { type: 'string', format: 'date-time' }, isTime)

/** Converts no values. Ajv would accept 5 as a name. TypeBox's Fastify compiler would accept 1.5 as an id. */
export function compileValidator ({ schema, httpPart }: { schema: TSchema, httpPart: string }) {
  const toApiError = toApiErrorByPart[httpPart]
  if (toApiError === undefined) throw new Error(`Validation supports no schema of ${httpPart}.`)
  const check = TypeCompiler.Compile(schema)
  return (value: unknown) => check.Check(value)
    ? { value }
    : { error: toApiError(check.Errors(value).First() as ValueError) }
}

const toApiErrorByPart: Record<string, (error: ValueError) => ApiError> = {
  body (error) {
    const { path, schema, value } = error
    if (path === '') {
      return new ApiError(errors.BODY_NOT_OBJECT, { detail: `its fields are ${fieldsOf(schema)}` })
    }
    if (value === undefined) {
      const expected = describe(error)
      const hint = expected === undefined ? '' : `: expected ${expected}`
      return reject(errors.FIELD_MISSING, `${nameOf(error)} is missing${hint}.`)
    }
    if (schema[Kind] === 'Int64' && typeof value === 'number' && Math.abs(value) >= 2 ** 63) {
      return reject(errors.INT64_OUT_OF_RANGE, `${nameOf(error)} must be ${int64Range}.`)
    }
    return reject(errors.FIELD_INVALID, `${nameOf(error)} ${requirementOf(error)}.`)
  },

  params: (error) =>
    reject(errors.PATH_PARAMETER_INVALID, `The ${nameOf(error)} in the path ${requirementOf(error)}.`),

  querystring (error) {
    const name = nameOf(error)
    if (error.type !== ValueErrorType.ObjectAdditionalProperties) {
      return reject(errors.QUERY_PARAMETER_INVALID, `${name} ${requirementOf(error)}, given once.`)
    }
    const known = Object.keys(error.schema.properties).join(' or ') || 'none'
    // Do not repeat a long name: it may be a token, and tokens must not get into the log.
    const shown = /^\w{1,20}$/.test(name) ? name : 'This name'
    return reject(errors.QUERY_PARAMETER_INVALID, `${shown} is not a parameter here: use ${known}.`)
  }
}

const reject = (definition: ErrorDefinition, message: string) => new ApiError(definition, { message })

/** Turns `/maker/name` into `maker.name`. */
const nameOf = ({ path }: ValueError) => path.slice(1).replaceAll('/', '.')

const fieldsOf = ({ properties = {}, required = [] }: TSchema) => Object.keys(properties)
  .map((name) => required.includes(name) ? name : `${name} (optional)`).join(', ')

function requirementOf (error: ValueError): string {
  const description = describe(error)
  return description === undefined ? `is not valid: ${error.message}` : `must be ${description}`
}

function describe ({ schema, value }: ValueError): string | undefined {
  const description = typeDescriptions[schema[Kind]]
  return typeof description === 'function' ? description(value) : description
}
