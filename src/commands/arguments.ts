// Parses the arguments of the commands.
import { InvalidArgumentError } from 'commander'
import { isPrintable } from '../access/user-name.ts'
import { parseDuration } from '../setting-types.ts'

const printable = (what: string) => (text: string) => {
  if (isPrintable(text)) return text
  throw new InvalidArgumentError(`${what} is 1 to 255 printable characters.`)
}
export const userName = printable('A user name')
export const label = printable('A label')

export function positiveInteger (text: string): number {
  if (/^[1-9]\d{0,8}$/.test(text)) return Number(text)
  throw new InvalidArgumentError('Expected a whole number from 1 to 999999999.')
}

/** Parses a duration from now (`90d`), the start of a UTC day (`2027-01-01`) or a time as in `token list`. */
export function expiry (text: string): Date {
  const duration = parseDuration(text)
  const day = text.includes('T') ? text : `${text}T00:00:00.000Z`
  const time = duration >= 0 ? new Date(Date.now() + duration).toJSON() : day
  const date = new Date(time)
  // `toJSON` changes a day such as February 30. PostgreSQL cannot read years after 9999, such as `+010000`.
  if (date.toJSON() === time && Number(date) > Date.now() && !time.startsWith('+')) return date
  throw new InvalidArgumentError(
    'Expected a duration such as 90d, 12h or 30s, or a future date such as 2027-01-01.')
}
