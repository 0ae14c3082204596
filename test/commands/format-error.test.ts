import t from 'tap'
import { formatError } from '../../src/commands/format-error.ts'
import { ApiError, errors } from '../../src/errors.ts'

const withCode = (code: string, message: string) => Object.assign(new Error(message), { code })

t.test('an error becomes one line with all its causes', async (t) => {
  const cause = new AggregateError([
    new Error('connect ECONNREFUSED ::1:1'), new Error('connect ECONNREFUSED 127.0.0.1:1')
  ])
  t.equal(formatError(new ApiError(errors.DATABASE_UNAVAILABLE, { cause })),
    'The database cannot be reached. connect ECONNREFUSED ::1:1 connect ECONNREFUSED 127.0.0.1:1')
})

t.test('an error with a known remedy becomes the error and the remedy', async (t) => {
  const nodes = 'self-signed certificate in certificate chain; if the root CA is installed locally, try ' +
    'running Node.js with --use-system-ca'
  const remedy = 'Name the file of the authority that signed it in DATABASE_URL: ' +
    '…?sslmode=verify-full&sslrootcert=/path/to/ca.pem'
  for (const code of [
    'SELF_SIGNED_CERT_IN_CHAIN', 'DEPTH_ZERO_SELF_SIGNED_CERT', 'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
    'UNABLE_TO_GET_ISSUER_CERT_LOCALLY'
  ]) {
    t.equal(formatError(new ApiError(errors.DATABASE_UNAVAILABLE, { cause: withCode(code, nodes) })),
      `self-signed certificate in certificate chain. ${remedy}`)
  }
})
