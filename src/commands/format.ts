// Formats errors for an operator.

const ca = 'Name the file of the authority that signed it in DATABASE_URL: ' +
  '…?sslmode=verify-full&sslrootcert=/path/to/ca.pem'

/** Maps an error code of Node, OpenSSL or PostgreSQL to advice for the operator. */
const remedies: Record<string, string> = {
  SELF_SIGNED_CERT_IN_CHAIN: ca,
  DEPTH_ZERO_SELF_SIGNED_CERT: ca,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: ca,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: ca,
  Z_BUF_ERROR: 'The gzip file is truncated.',
  Z_DATA_ERROR: 'Expected a gzip file.',
  '42P01': 'Create the tables first: start the service, or run plant-store migrate.'
}

type Cause = AggregateError & { code?: string }

/** Formats an error with its causes as one line. */
export function formatError (error: unknown): string {
  const { code = '', message, cause, errors } = error as Cause
  if (code in remedies) return `${message}. ${remedies[code]}`
  // If a host name has several addresses, Node's error has no message, but a list of one error per address.
  const causes = [cause, errors].flat().filter(Boolean) as Cause[]
  const remedied = causes.find(({ code = '' }) => code in remedies)
  return remedied ? formatError(remedied) : [message, ...causes.map(formatError)].join(' ').trim()
}
