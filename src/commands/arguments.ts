// What may stand behind a command, and the words in which anything else is refused.
import { InvalidArgumentError, type Command } from 'commander'
import { parseDuration } from '../config.ts'

// The last moment that PostgreSQL reads as JavaScript writes it.
const endOfTime = Date.UTC(9999, 11, 31)

// Refused are characters a terminal or a log could stumble over, and names too long for an index.
const isPrintable = (text: string) => /^[^\p{C}\p{Zl}\p{Zp}]{1,255}$/u.test(text)

export function userName (text: string): string {
  if (!isPrintable(text)) throw new InvalidArgumentError('A user name is 1 to 255 printable characters.')
  return text
}

export function label (text: string): string {
  if (!isPrintable(text)) throw new InvalidArgumentError('A label is 1 to 255 printable characters.')
  return text
}

/** The moment that `90d`, `12h`, a day (its start, UTC) or a moment as `token list` shows it stands for. */
export function expiry (text: string): Date {
  const duration = parseDuration(text)
  const moment = duration === undefined ? parseMoment(text) : Date.now() + duration
  if (moment > Date.now() && moment <= endOfTime) return new Date(moment)
  throw new InvalidArgumentError(
    'Expected a duration such as 90d, 12h or 30s, or a date to come such as 2027-01-01.')
}

/** NaN when there is no such day, where Date.parse would give one of the next month. */
function parseMoment (text: string): number {
  const whole = text.includes('T') ? text : `${text}T00:00:00.000Z`
  const moment = Date.parse(whole)
  return moment > 0 && new Date(moment).toISOString() === whole ? moment : NaN
}

/** npm keeps options that stand before `--` for itself: a token that should only read could do everything. */
export function rejectOptionsConsumedByNpm (command: Command): void {
  const lost = command.options.find(({ long }) =>
    String(long).replace('--', 'npm_config_').replaceAll('-', '_') in process.env)
  if (lost) command.error(`error: npm has kept ${lost.long} for itself: put -- before the first option`)
}
