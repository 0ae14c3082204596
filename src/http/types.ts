// The value types that this service adds to TypeBox.
import { Kind, Type, TypeRegistry, type TUnsafe } from '@sinclair/typebox'
import { int64Range, inInt64Range } from './int64.ts'

/** What a value of each kind must be, in words for error messages. */
export const typeDescriptions: Record<string, string> = {}

/** Defines a type of values. `kind` is its name for TypeBox. */
export function defineType<Value> (
  kind: string, description: string, schema: object, check: (value: unknown) => boolean
) {
  typeDescriptions[kind] = description
  TypeRegistry.Set(kind, (_schema, value) => check(value))
  return (options: { description: string, examples?: unknown[] }): TUnsafe<Value> =>
    Type.Unsafe({ [Kind]: kind, ...schema, ...options })
}

/** A 64-bit integer in a JSON body. Integers beyond ±2^53 are bigints, all other integers are numbers. */
export const Int64 = defineType<number | bigint>('Int64', `an integer ${int64Range}`,
  { type: 'integer', format: 'int64' },
  (value) => typeof value === 'bigint' || Number.isSafeInteger(value))

// Check the length first: BigInt takes time quadratic in the number of digits. Any 18 digits are in range.
export const isInt64 = (value: unknown) => typeof value === 'string' && value.length <= 20 &&
  /^(0|-?[1-9][0-9]*)$/.test(value) && (value.length <= 18 || inInt64Range(BigInt(value)))

/** A 64-bit integer in a URL, as text. */
export const Int64Text = defineType<string>('Int64Text', `a decimal integer ${int64Range}`,
  { type: 'integer', format: 'int64' }, isInt64)

/** A count in a query string, as text. */
export const LimitText = defineType<string>('LimitText', 'a decimal integer from 0 to 2147483647',
  { type: 'integer', format: 'int32', minimum: 0 },
  (value) => typeof value === 'string' && /^(0|[1-9][0-9]{0,9})$/.test(value) && Number(value) <= 2147483647)

/** A string that PostgreSQL stores and returns unchanged. */
export const UnicodeText = defineType<string>('UnicodeText', 'a string of Unicode characters without U+0000',
  { type: 'string', pattern: '^[^\\u0000]*$' },
  (value) => typeof value === 'string' && !value.includes('\0') && value.isWellFormed())
