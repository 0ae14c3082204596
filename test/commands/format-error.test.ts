import t from 'tap'
import { formatError } from '../../src/commands/format-error.ts'
import { ApiError, errors } from '../../src/errors.ts'

const withCode = (code: string, message: string) => Object.assign(new Error(message), { code })

t.test('an error is one line with all that led to it', async (t) => {
  const cause = new AggregateError([new Error('connect ECONNREFUSED ::1:1'), new Error('connect ECONNREFUSED 127.0.0.1:1')])
  t.equal(formatError(new ApiError(errors.DATABASE_UNAVAILABLE, { cause })),
    'The database cannot be reached. connect ECONNREFUSED ::1:1 connect ECONNREFUSED 127.0.0.1:1')
})

t.test('where there is something to do about it, that is what the line says', async (t) => {
  const nodes = 'self-signed certificate in certificate chain; if the root CA is installed locally, try running Node.js with --use-system-ca'
  const remedy = 'Name the file of the authority that signed it: …?sslmode=verify-full&sslrootcert=/path/to/ca.pem in DATABASE_URL.'
  for (const code of ['SELF_SIGNED_CERT_IN_CHAIN', 'DEPTH_ZERO_SELF_SIGNED_CERT', 'UNABLE_TO_VERIFY_LEAF_SIGNATURE', 'UNABLE_TO_GET_ISSUER_CERT_LOCALLY']) {
    t.equal(formatError(new ApiError(errors.DATABASE_UNAVAILABLE, { cause: withCode(code, nodes) })),
      `self-signed certificate in certificate chain. ${remedy}`)
  }
})
