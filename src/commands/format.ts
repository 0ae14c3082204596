// Formats errors and tables for an operator.
import { escapeInvisible } from '../access/tokens.ts'
import { urlForm } from '../database/connection-string.ts'

/** Advice for the operator, by the error codes of Node, OpenSSL and PostgreSQL. */
const remedies: Array<[codes: RegExp, advice: string]> = [
  [/SELF_SIGNED_CERT|^UNABLE_TO_(GET_ISSUER|VERIFY)/, 'Name the certificate file of the authority in ' +
    'DATABASE_URL: …?sslmode=verify-full&sslrootcert=/path/to/ca.pem'],
  [/^(ENOTFOUND|EAI_AGAIN)$/, 'HOST or DATABASE_URL has this host name.'],
  [/^EADDRINUSE$/, 'Set PORT to a free port, or METRICS_PORT for the metrics.'],
  [/^Z_BUF_ERROR$/, 'The gzip file is truncated.'],
  [/^Z_DATA_ERROR$/, 'The file is no gzip file, is damaged, or has other data after its end.'],
  [/^42P01$/, 'Create the tables first: start the service, or run plant-store migrate.'],
  [/^42703$/, 'Migrate the tables first: start the newest version, or run its plant-store migrate.'],
  [/^42501$/, 'docs/operating.md lists the privileges of the roles.'],
  [/^28000$/, 'If the server accepts only TLS, add ?sslmode=verify-full to DATABASE_URL.'],
  [/^28P01$/, `The form of DATABASE_URL is ${urlForm}.`]
]
const adviceFor = (code = '') => remedies.find(([codes]) => codes.test(code))?.[1]

/** The arguments of a command are wrong. The exit code is 2. */
export class UsageError extends Error {}

type Cause = AggregateError & { code?: string }

/** Formats an error with its causes as one line. Escape sequences of a file could garble the terminal. */
export const formatError = (error: unknown) => explain(error).replaceAll(/[^\P{C}\n]+/gu, ' ')

function explain (error: unknown): string {
  const { code, message, cause, errors } = error as Cause
  const advice = adviceFor(code)
  if (advice !== undefined) return `${message}. ${advice}`
  // If a host name has several addresses, Node's error has no message, but a list of one error per address.
  const causes = [cause, errors].flat().filter(Boolean) as Cause[]
  const remedied = causes.find(({ code }) => adviceFor(code))
  return remedied ? explain(remedied) : [message, ...causes.map(explain)].join(' ').trim()
}

/** Hides the tokens in a text, such as a message about a token that was given instead of an id. */
export const hideTokens = (text: string) =>
  text.replaceAll(/plant_[0-9a-z]{20,}|eyJ[\w-]+\.[\w-]+\.[\w-]*/gi, '<a token>')

/** Returns `1 token` for 1 and `tokens`, and `2 tokens` for 2. */
export const countOf = (count: number, plural: string) =>
  `${count} ${count === 1 ? plural.slice(0, -1) : plural}`

/** Formats rows as a text table with aligned columns. */
export function formatTable (heads: string[], texts: string[][]): string {
  const rows = texts.map((row) => row.map(escapeInvisible))
  const widths = heads.map((head, column) =>
    rows.reduce((width, row) => Math.max(width, (row[column] as string).length), head.length))
  return [heads, ...rows]
    .map((row) => row.map((cell, column) => cell.padEnd(widths[column] as number)).join('  ').trimEnd())
    .join('\n')
}
