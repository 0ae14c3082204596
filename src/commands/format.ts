// Formats errors for an operator.
import { urlForm } from '../database/connection-string.ts'

/** Advice for the operator, by the error codes of Node, OpenSSL and PostgreSQL. */
const remedies: Array<[codes: RegExp, advice: string]> = [
  [/SELF_SIGNED_CERT|^UNABLE_TO_(GET_ISSUER|VERIFY)/, 'Name the certificate file of the authority in ' +
    'DATABASE_URL: …?sslmode=verify-full&sslrootcert=/path/to/ca.pem'],
  [/^EADDRINUSE$/, 'Set PORT to a free port, or METRICS_PORT for the metrics.'],
  [/^Z_BUF_ERROR$/, 'The gzip file is truncated.'],
  [/^Z_DATA_ERROR$/, 'Expected a gzip file.'],
  [/^42P01$/, 'Create the tables first: start the service, or run plant-store migrate.'],
  [/^42501$/, 'docs/operating.md lists the privileges of the roles.'],
  [/^28P01$/, `The form of DATABASE_URL is ${urlForm}.`]
]
const adviceFor = (code = '') => remedies.find(([codes]) => codes.test(code))?.[1]

type Cause = AggregateError & { code?: string }

/** Formats an error with its causes as one line. */
export function formatError (error: unknown): string {
  const { code, message, cause, errors } = error as Cause
  const advice = adviceFor(code)
  if (advice !== undefined) return `${message}. ${advice}`
  // If a host name has several addresses, Node's error has no message, but a list of one error per address.
  const causes = [cause, errors].flat().filter(Boolean) as Cause[]
  const remedied = causes.find(({ code }) => adviceFor(code))
  return remedied ? formatError(remedied) : [message, ...causes.map(formatError)].join(' ').trim()
}
