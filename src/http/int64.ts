// Integers in a body get the value that was written, however many digits it has.
import { Kind, type TSchema } from '@sinclair/typebox'
import { sourceOf } from './json.ts'

const smallest = -(2n ** 63n)
const largest = 2n ** 63n - 1n

export const int64Range = `from ${smallest} to ${largest}`
export const inInt64Range = (value: bigint) => value >= smallest && value <= largest

type Holder = Record<string, unknown>

/** Gives the integers at and below `holder[key]` their exact value. */
type Settle = (holder: Holder, key: string) => void

/**
 * The places of integers, looked up in the schema once. An Int64 becomes a
 * bigint, Infinity beyond 64 bits. What is no integer that fits becomes NaN
 * where a double would pass for one, so that no check lets it pass. Undefined
 * for a schema without integers. Of the variants of a union, one that expects
 * an Int64 decides for all that expect a number at the same place.
 */
export function settlerFor (schema: TSchema): Settle | undefined {
  switch (schema[Kind]) {
    case 'Int64': return settleInt64
    case 'Integer': return settleInteger
    case 'Object': return settleFields(schema.properties)
    case 'Tuple': return settleFields(schema.items)
    case 'Array': return settleEach(schema.items)
    case 'Record': return settleEach(Object.values(schema.patternProperties as Record<string, TSchema>)[0])
    case 'Union': return settleAll(schema.anyOf)
    case 'Intersect': return settleAll(schema.allOf)
  }
}

function settleFields (fields: Record<string, TSchema> = {}): Settle | undefined {
  const settlers = Object.entries(fields).flatMap(([name, field]) => {
    const settle = settlerFor(field)
    return settle === undefined ? [] : [{ name, settle }]
  })
  if (settlers.length === 0) return
  return (holder, key) => {
    const value = holder[key]
    if (isHolder(value)) for (const { name, settle } of settlers) settle(value, name)
  }
}

function settleEach (item: TSchema = {} as TSchema): Settle | undefined {
  const settle = settlerFor(item)
  if (settle === undefined) return
  return (holder, key) => {
    const value = holder[key]
    if (isHolder(value)) for (const each of Object.keys(value)) settle(value, each)
  }
}

function settleAll (variants: TSchema[]): Settle | undefined {
  const settlers = variants.map(settlerFor).filter((settle) => settle !== undefined)
  if (settlers.length === 0) return
  return (holder, key) => { for (const settle of settlers) settle(holder, key) }
}

const isHolder = (value: unknown): value is Holder => typeof value === 'object' && value !== null

function settleInt64 (holder: Holder, key: string): void {
  const value = holder[key]
  // What is a fraction even as a double stays one, for the check to refuse.
  if (typeof value === 'number' && (Number.isInteger(value) || !Number.isFinite(value))) {
    holder[key] = exactly(value, holder, key)
  }
}

function settleInteger (holder: Holder, key: string): void {
  const value = holder[key]
  if (typeof value !== 'number' || !Number.isInteger(value)) return
  if (!Number.isSafeInteger(value) || typeof exactly(value, holder, key) === 'number') holder[key] = NaN
}

function exactly (value: number, holder: Holder, key: string): bigint | number {
  const source = sourceOf(holder, key)
  if (source !== undefined) return readInt64(source)
  // A text without sources has no number that could have lost anything.
  return BigInt(value)
}

/**
 * The exact value of a JSON number (RFC 8259, section 6), however it is
 * written: 1, 1.0, 10e-1. NaN for a fraction, Infinity for an integer beyond
 * 64 bits. Takes time linear in the length of the text.
 */
function readInt64 (source: string): bigint | number {
  const [, sign, whole = '', fraction = '', exponent = '0'] =
    /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?$/.exec(source) as RegExpExecArray
  const digits = (whole + fraction).replace(/^0+/, '')
  if (digits === '') return 0n
  const significant = trimZeros(digits)
  const zeros = Number(exponent) - fraction.length + (digits.length - significant.length)
  if (zeros < 0) return NaN
  if (significant.length + zeros > 19) return Infinity
  const value = BigInt(`${sign}${significant}${'0'.repeat(zeros)}`)
  return inInt64Range(value) ? value : Infinity
}

// A loop, since /0+$/ takes quadratic time on digits with many runs of zeros.
function trimZeros (digits: string): string {
  let end = digits.length
  while (digits.charCodeAt(end - 1) === 0x30) end--
  return digits.slice(0, end)
}
