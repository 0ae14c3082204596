// Parses the numbers of a JSON body, and keeps 64-bit integers exact.

const smallest = -(2n ** 63n)
const largest = 2n ** 63n - 1n

export const int64Range = `from ${smallest} to ${largest}`
export const inInt64Range = (value: bigint) => value >= smallest && value <= largest

/**
 * Returns a bigint for a 64-bit integer beyond ±2^53, and NaN for a fraction that JSON.parse rounded to an
 * integer. For other numbers returns `double`, the result of JSON.parse. `source` is the number's text.
 */
export function exactNumber (double: number, source: string): number | bigint {
  if (!Number.isInteger(double)) return double
  const [, sign, whole = '', fraction = '', exponent = '0'] =
    /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?$/.exec(source) as RegExpExecArray
  const digits = whole + fraction
  const significant = /[1-9](?:\d*[1-9])?/.exec(digits)
  if (significant === null) return 0
  const [text] = significant
  const zeros = Number(exponent) + whole.length - significant.index - text.length
  if (zeros < 0) return NaN
  // Check the length first: BigInt takes time quadratic in the number of digits.
  if (Number.isSafeInteger(double) || text.length + zeros > 19) return double
  const value = BigInt(`${sign}${text}${'0'.repeat(zeros)}`)
  return inInt64Range(value) ? value : double
}
