import { parseDuration } from '../config.ts'
import { tokenState } from '../access/own-tokens.ts'
import type { Tokens } from '../access/tokens.ts'

// The last moment that PostgreSQL reads as JavaScript writes it.
const endOfTime = Date.UTC(9999, 11, 31)

/**
 * The moment that `90d`, `12h` or `2027-01-01` (its start, UTC) stands for;
 * undefined when the text is none of these or the moment is past.
 */
export function parseExpiry (text: string): Date | undefined {
  const duration = parseDuration(text)
  const moment = duration === undefined ? parseDate(text) : Date.now() + duration
  return moment > Date.now() && moment <= endOfTime ? new Date(moment) : undefined
}

/** NaN when there is no such day, where Date.parse would give one of the next month. */
function parseDate (text: string): number {
  const moment = Date.parse(`${text}T00:00:00Z`)
  return moment > 0 && new Date(moment).toISOString().startsWith(`${text}T`) ? moment : NaN
}

/** Characters a terminal or a log could stumble over are refused, and names too long for an index. */
export const isUserName = (text: string) => /^[^\p{C}\p{Zl}\p{Zp}]{1,255}$/u.test(text)

/** The tokens as an operator sees them: a table, or JSON for programs. */
export async function listTokens (tokens: Tokens, user: string | undefined, asJson: boolean): Promise<string> {
  const rows = (await tokens.list(user)).map((token) => ({
    id: token.id,
    user: token.user,
    label: token.label ?? '',
    access: token.readOnly ? 'read-only' : 'full',
    created: token.created.toISOString(),
    expires: token.expires?.toISOString() ?? 'never',
    state: tokenState(token)
  }))
  if (asJson) return JSON.stringify(rows, null, 2)
  const lines = [['ID', 'USER', 'LABEL', 'ACCESS', 'CREATED', 'EXPIRES', 'STATE'], ...rows.map((row) => Object.values(row))]
  const widths = lines[0]?.map((_, column) => lines.reduce((width, line) => Math.max(width, (line[column] as string).length), 0)) as number[]
  return lines.map((line) => line.map((cell, column) => cell.padEnd(widths[column] as number)).join('  ').trimEnd()).join('\n')
}
