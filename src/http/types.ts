// The types of values that this service adds to those of TypeBox.
import { Kind, Type, TypeRegistry, type TUnsafe } from '@sinclair/typebox'
import { int64Range, inInt64Range } from './int64.ts'

type Options = { description: string, examples?: unknown[] }

// The parser makes a bigint of every 64-bit integer that a double cannot hold.
TypeRegistry.Set('Int64', (_schema, value) => typeof value === 'bigint' || Number.isSafeInteger(value))
TypeRegistry.Set('Int64Text', (_schema, value) => typeof value === 'string' &&
  // The length comes first: BigInt takes time quadratic in the number of digits.
  value.length <= 20 && /^(0|-?[1-9][0-9]*)$/.test(value) && inInt64Range(BigInt(value)))
TypeRegistry.Set('LimitText', (_schema, value) => typeof value === 'string' &&
  /^(0|[1-9][0-9]{0,9})$/.test(value) && Number(value) <= 2147483647)
TypeRegistry.Set('UnicodeText', (_schema, value) => typeof value === 'string' &&
  !value.includes('\0') && value.isWellFormed())

/** A 64-bit integer in a JSON body: a bigint beyond 2^53, so convert it before you calculate or compare. */
export const Int64 = (options: Options): TUnsafe<number | bigint> =>
  Type.Unsafe({ [Kind]: 'Int64', type: 'integer', format: 'int64', ...options })

/** A 64-bit integer in a URL, as text: decimal, no plus sign, no leading zeros. */
export const Int64Text = (options: Options): TUnsafe<string> =>
  Type.Unsafe({ [Kind]: 'Int64Text', type: 'integer', format: 'int64', ...options })

/** A count in a query string, as text: decimal, no plus sign, no leading zeros. */
export const LimitText = (options: Options): TUnsafe<string> =>
  Type.Unsafe({ [Kind]: 'LimitText', type: 'integer', format: 'int32', minimum: 0, ...options })

/** A string that PostgreSQL stores and returns unchanged. */
export const UnicodeText = (options: Options): TUnsafe<string> =>
  Type.Unsafe({ [Kind]: 'UnicodeText', type: 'string', pattern: '^[^\\u0000]*$', ...options })

/** What a value of each of these types must be. */
export const typeDescriptions: Record<string, string> = {
  Int64: `an integer ${int64Range}`,
  Int64Text: `a decimal integer ${int64Range}`,
  LimitText: 'a decimal integer from 0 to 2147483647',
  UnicodeText: 'a string of Unicode characters without U+0000'
}
