// An error as a line that an operator can act upon.

const ca = 'Name the file of the authority that signed it: ' +
  '…?sslmode=verify-full&sslrootcert=/path/to/ca.pem in DATABASE_URL.'

/** By the code of Node's, OpenSSL's or PostgreSQL's: what to do about it. */
const remedies: Record<string, string> = {
  SELF_SIGNED_CERT_IN_CHAIN: ca,
  DEPTH_ZERO_SELF_SIGNED_CERT: ca,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: ca,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: ca,
  '42P01': 'Bring the schema up to date first: start the service, or run the command migrate.'
}

type Cause = AggregateError & { code?: string }

/** One line: what there is to do about it, or everything that led to it. */
export function formatError (error: unknown): string {
  const { code = '', message, cause, errors } = error as Cause
  // Node's own remedy is an option that the program does not take.
  const [said = ''] = message.split('; if the root CA is installed locally', 1)
  if (code in remedies) return `${said.replace(/\.?$/, '.')} ${remedies[code]}`
  // Where a name has several addresses the message of Node's error is empty, and theirs tell.
  const causes = [cause, errors].flat().filter(Boolean) as Cause[]
  const remedied = causes.find(({ code = '' }) => code in remedies)
  return remedied ? formatError(remedied) : [said, ...causes.map(formatError)].join(' ').trim()
}
