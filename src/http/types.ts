// The value types that this service adds to TypeBox.
import { Kind, Type, TypeRegistry, type TUnsafe } from '@sinclair/typebox'
import { int64Range, inInt64Range } from './int64.ts'

/** What a value of each kind must be, in words for error messages. */
export const typeDescriptions: Record<string, string> = {}

function define<Value> (
  kind: string, description: string, schema: object, check: (value: unknown) => boolean
) {
  typeDescriptions[kind] = description
  TypeRegistry.Set(kind, (_schema, value) => check(value))
  return (options: { description: string, examples?: unknown[] }): TUnsafe<Value> =>
    Type.Unsafe({ [Kind]: kind, ...schema, ...options })
}

/** A 64-bit integer in a JSON body. Integers beyond ±2^53 are bigints, all other integers are numbers. */
export const Int64 = define<number | bigint>('Int64', `an integer ${int64Range}`,
  { type: 'integer', format: 'int64' },
  (value) => typeof value === 'bigint' || Number.isSafeInteger(value))

// Check the length first: BigInt takes time quadratic in the number of digits.
const isInt64 = (value: unknown) => typeof value === 'string' && value.length <= 20 &&
  /^(0|-?[1-9][0-9]*)$/.test(value) && inInt64Range(BigInt(value))

/** A 64-bit integer in a URL, as text. */
export const Int64Text = define<string>('Int64Text', `a decimal integer ${int64Range}`,
  { type: 'integer', format: 'int64' }, isInt64)

export const writeCursor = (id: string) => Buffer.from(id).toString('base64url')
export const readCursor = (cursor: string) => Buffer.from(cursor, 'base64url').toString('latin1')

/** A plant's id, encoded by `writeCursor` so that clients do not use the text as an id or an offset. */
export const CursorText = define<string>('CursorText', 'the value from the Link header of a list',
  { type: 'string' },
  (value) => typeof value === 'string' && isInt64(readCursor(value)) &&
    writeCursor(readCursor(value)) === value)

/** A count in a query string, as text. */
export const LimitText = define<string>('LimitText', 'a decimal integer from 0 to 2147483647',
  { type: 'integer', format: 'int32', minimum: 0 },
  (value) => typeof value === 'string' && /^(0|[1-9][0-9]{0,9})$/.test(value) && Number(value) <= 2147483647)

/** A string that PostgreSQL stores and returns unchanged. */
export const UnicodeText = define<string>('UnicodeText', 'a string of Unicode characters without U+0000',
  { type: 'string', pattern: '^[^\\u0000]*$' },
  (value) => typeof value === 'string' && !value.includes('\0') && value.isWellFormed())
