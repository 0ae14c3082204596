// 64-bit integers in bodies and URLs.
import { Kind, Type, TypeRegistry, type TUnsafe } from '@sinclair/typebox'

const smallest = -(2n ** 63n)
const largest = 2n ** 63n - 1n

const inRange = (value: bigint) => value >= smallest && value <= largest

// The parser of bodies makes it one only within the range.
TypeRegistry.Set('Int64', (_schema, value) => typeof value === 'bigint')
TypeRegistry.Set('Int64Text', (_schema, value) => typeof value === 'string' &&
  // The length first: BigInt takes time quadratic in its digits.
  value.length <= 20 && /^(0|-?[1-9][0-9]*)$/.test(value) && inRange(BigInt(value)))

/** A 64-bit integer in a JSON body, where the parser makes it a bigint. */
export const Int64 = (options: { description: string, examples?: unknown[] }): TUnsafe<bigint> =>
  Type.Unsafe({ [Kind]: 'Int64', type: 'integer', format: 'int64', ...options })

/** A 64-bit integer in a URL. It stays the text it is: decimal, no plus, no leading zeros. */
export const Int64Text = (options: { description: string, examples?: unknown[] }): TUnsafe<string> =>
  Type.Unsafe({ [Kind]: 'Int64Text', type: 'integer', format: 'int64', ...options })

/**
 * The exact value of a JSON number (RFC 8259, section 6), however it is
 * written: 1, 1.0, 10e-1. Undefined for a fraction, Infinity for an integer
 * beyond 64 bits. Takes time linear in the length of the text.
 */
export function readInt64 (source: string): bigint | number | undefined {
  const [, sign, whole = '', fraction = '', exponent = '0'] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?$/.exec(source) as RegExpExecArray
  const digits = (whole + fraction).replace(/^0+/, '')
  if (digits === '') return 0n
  const significant = trimZeros(digits)
  const zeros = Number(exponent) - fraction.length + (digits.length - significant.length)
  if (zeros < 0) return undefined
  if (significant.length + zeros > 19) return Infinity
  const value = BigInt(`${sign}${significant}${'0'.repeat(zeros)}`)
  return inRange(value) ? value : Infinity
}

// A loop, since /0+$/ takes quadratic time on digits with many runs of zeros.
function trimZeros (digits: string): string {
  let end = digits.length
  while (digits[end - 1] === '0') end--
  return digits.slice(0, end)
}
