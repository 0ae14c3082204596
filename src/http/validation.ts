// Whether the parts of a request are what the schemas of its route say, and the sentence when they are not.
import { Kind, Type, TypeRegistry, type TSchema, type TUnsafe } from '@sinclair/typebox'
import { TypeCompiler, type ValueError } from '@sinclair/typebox/compiler'
import type { FastifySchemaCompiler } from 'fastify'
import { ApiError, errors, type ErrorKind } from '../errors.ts'

TypeRegistry.Set('UnicodeText', (_schema, value) =>
  typeof value === 'string' && !value.includes('\0') && value.isWellFormed())
TypeRegistry.Set('LimitText', (_schema, value) =>
  typeof value === 'string' && /^(0|[1-9][0-9]{0,9})$/.test(value) && Number(value) <= 2147483647)

/** A string that PostgreSQL can hold and give back unchanged. */
export const UnicodeText = (options: { description: string, examples?: unknown[] }): TUnsafe<string> =>
  Type.Unsafe({ [Kind]: 'UnicodeText', type: 'string', pattern: '^[^\\u0000]*$', ...options })

/** A count in a query string. It stays the text it is: decimal, no plus, no leading zeros. */
export const LimitText = (options: { description: string, examples?: unknown[] }): TUnsafe<string> =>
  Type.Unsafe({ [Kind]: 'LimitText', type: 'integer', format: 'int32', minimum: 0, ...options })

const expectations: Record<string, string> = {
  Int64: 'an integer from -9223372036854775808 to 9223372036854775807',
  UnicodeText: 'a string of Unicode characters without U+0000'
}

/**
 * Checks a part of a request and changes nothing of it: neither TypeBox's own
 * compiler for Fastify nor Ajv would, say, delete plant 1 for /plants/1.5 otherwise.
 */
export const compileValidator: FastifySchemaCompiler<TSchema> = ({ schema }) => {
  const check = TypeCompiler.Compile(schema)
  return (value) => check.Check(value) ? { value } : { error: toApiError(check.Errors(value).First() as ValueError) }
}

function toApiError ({ path, schema, value }: ValueError): ApiError {
  const field = path.slice(1)
  const kind = schema[Kind] as string
  if (kind === 'Object') return new ApiError(errors.BODY_NOT_OBJECT)
  const byKind: Record<string, ErrorKind> = { Int64Text: errors.PATH_ID_INVALID, LimitText: errors.LIMIT_INVALID }
  const name = byKind[kind]
  if (name !== undefined) return new ApiError(name)
  if (kind === 'Int64' && value === Infinity) return new ApiError(errors.ID_OUT_OF_RANGE)
  return new ApiError(value === undefined ? errors.FIELD_MISSING : errors.FIELD_INVALID, { message: `${field} must be ${expectations[kind]}.` })
}
