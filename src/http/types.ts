// The kinds of values a schema can name: what is checked of each, and in which words a wrong one is refused.
import { Kind, Type, TypeRegistry, type TSchema, type TUnsafe } from '@sinclair/typebox'
import { int64Range, inInt64Range } from './int64.ts'

type Options = { description: string, examples?: unknown[] }

// Validation makes it a bigint only within the range.
TypeRegistry.Set('Int64', (_schema, value) => typeof value === 'bigint')
TypeRegistry.Set('Int64Text', (_schema, value) => typeof value === 'string' &&
  // The length first: BigInt takes time quadratic in its digits.
  value.length <= 20 && /^(0|-?[1-9][0-9]*)$/.test(value) && inInt64Range(BigInt(value)))
TypeRegistry.Set('LimitText', (_schema, value) => typeof value === 'string' &&
  /^(0|[1-9][0-9]{0,9})$/.test(value) && Number(value) <= 2147483647)
TypeRegistry.Set('UnicodeText', (_schema, value) => typeof value === 'string' &&
  !value.includes('\0') && value.isWellFormed())

/** A 64-bit integer in a JSON body, for the handler a bigint. */
export const Int64 = (options: Options): TUnsafe<bigint> =>
  Type.Unsafe({ [Kind]: 'Int64', type: 'integer', format: 'int64', ...options })

/** A 64-bit integer in a URL. It stays the text it is: decimal, no plus, no leading zeros. */
export const Int64Text = (options: Options): TUnsafe<string> =>
  Type.Unsafe({ [Kind]: 'Int64Text', type: 'integer', format: 'int64', ...options })

/** A count in a query string. It stays the text it is: decimal, no plus, no leading zeros. */
export const LimitText = (options: Options): TUnsafe<string> =>
  Type.Unsafe({ [Kind]: 'LimitText', type: 'integer', format: 'int32', minimum: 0, ...options })

/** A string that PostgreSQL can hold and give back unchanged. */
export const UnicodeText = (options: Options): TUnsafe<string> =>
  Type.Unsafe({ [Kind]: 'UnicodeText', type: 'string', pattern: '^[^\\u0000]*$', ...options })

/** What ends the sentence "… must be …" about a value of each kind. */
const wordsByKind: Record<string, (schema: TSchema) => string> = {
  Int64: () => `an integer ${int64Range}`,
  Int64Text: () => `a decimal integer ${int64Range}`,
  LimitText: () => 'a decimal integer from 0 to 2147483647',
  UnicodeText: () => 'a string of Unicode characters without U+0000',
  // Beyond these a double may be another integer than the one that was written.
  Integer: (schema) => `an integer ${range(schema, Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER)}`,
  Number: (schema) => `a number ${range(schema, -Number.MAX_VALUE, Number.MAX_VALUE)}`,
  Boolean: () => 'true or false',
  Null: () => 'null',
  Literal: ({ const: value }) => JSON.stringify(value),
  Union: ({ anyOf }) => join(anyOf.map(describeType), 'or'),
  String: ({ minLength, maxLength, pattern, format }) => [
    // What TypeBox counts.
    `a string${count(minLength, maxLength, 'UTF-16 code unit')}`,
    ...pattern === undefined ? [] : [`that matches ${pattern}`],
    ...format === undefined ? [] : [`in the format ${format}`]
  ].join(' '),
  Array: ({ minItems, maxItems, uniqueItems }) =>
    `an array${count(minItems, maxItems, 'item')}${uniqueItems === true ? ', no two the same' : ''}`,
  Object: (schema) => `an object${fieldsOf(schema)}`
}

/** What a value has to be, of whatever kind. */
export const describeType = (schema: TSchema): string =>
  wordsByKind[schema[Kind] as string]?.(schema) ?? 'as the document of the API describes it'

/** " with id, name and optionally tag", or nothing for an object without fields of its own. */
export function fieldsOf ({ properties, required = [] }: TSchema): string {
  const optional = Object.keys(properties).filter((name) => !required.includes(name))
  const words = [...required, ...optional.length === 0 ? [] : [`optionally ${join(optional, 'and')}`]]
  return words.length === 0 ? '' : ` with ${join(words, 'and')}`
}

function range (schema: TSchema, least: number, most: number): string {
  const { exclusiveMinimum, exclusiveMaximum, multipleOf } = schema
  const minimum = Math.max(schema.minimum ?? least, least)
  const maximum = Math.min(schema.maximum ?? most, most)
  const multiple = multipleOf === undefined ? '' : `, a multiple of ${multipleOf}`
  if (exclusiveMinimum === undefined && exclusiveMaximum === undefined) {
    return `from ${minimum} to ${maximum}${multiple}`
  }
  const lower = exclusiveMinimum === undefined ? `of at least ${minimum}` : `above ${exclusiveMinimum}`
  const upper = exclusiveMaximum === undefined ? `at most ${maximum}` : `below ${exclusiveMaximum}`
  return `${lower} and ${upper}${multiple}`
}

function count (least: number | undefined, most: number | undefined, unit: string): string {
  const units = `${unit}${(most ?? least) === 1 ? '' : 's'}`
  if (most === undefined) return least === undefined ? '' : ` of at least ${least} ${units}`
  return least === undefined ? ` of at most ${most} ${units}` : ` of ${least} to ${most} ${units}`
}

/** "a, b and c". */
const join = (words: string[], last: string) =>
  words.length < 2 ? words.join() : `${words.slice(0, -1).join(', ')} ${last} ${words.at(-1)}`
