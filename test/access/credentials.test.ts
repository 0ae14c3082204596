import t from 'tap'
import { createToken } from '../../src/access/token-format.ts'
import { startApp } from '../support/app.ts'

const { app, as, log, tokens } = await startApp(t)
const alice = await as('alice')
await alice.create({ id: 1, name: 'Monstera' })

const full = alice.authorization
const anotherDigit = full.endsWith('0') ? '1' : '0'
const { authorization: revoked } = await as('revoked')
await tokens.revoke({ user: 'revoked' })

const credentials: Record<string, string | undefined> = {
  none: undefined,
  basic: `Basic ${Buffer.from('alice:secret').toString('base64')}`,
  'the token without a scheme': full.replace('Bearer ', ''),
  'the scheme without a token': 'Bearer',
  malformed: 'Bearer monstera',
  'several words': `${full} ${full}`,
  mistyped: full.slice(0, -1) + anotherDigit,
  'cut short': full.slice(0, -1),
  'in capitals': full.toUpperCase(),
  unknown: `Bearer ${createToken()}`,
  expired: (await as('alice', { expires: new Date(Date.now() - 1) })).authorization,
  revoked,
  'read-only': (await as('alice', { readOnly: true })).authorization,
  'another user\'s': (await as('bob')).authorization,
  'her own': full
}

const success = (status: number, body: string) => ({ status, body, header: undefined })
const missing = {
  status: 401,
  error: { error: 40101, message: 'This operation needs an Authorization header with a bearer token.' },
  header: 'Bearer realm="plants"'
}
const invalid = {
  status: 401,
  error: { error: 40102, message: 'The bearer token is not valid.' },
  header: 'Bearer realm="plants", error="invalid_token"'
}
const readOnly = {
  status: 403,
  error: { error: 40301, message: 'The bearer token may only read.' },
  header: 'Bearer realm="plants", error="insufficient_scope"'
}
const notFound = { status: 404, error: { error: 40402, message: 'You have no plant with this id.' }, header: undefined }

interface Expectation { reason?: string, create: object, list: object, delete: object }
const everywhere = (answer: object, reason: string) => ({ reason, create: answer, list: answer, delete: answer })

const matrix: Record<keyof typeof credentials, Expectation> = {
  none: everywhere(missing, 'FST_BEARER_AUTH_MISSING_AUTHORIZATION_HEADER'),
  basic: everywhere(missing, 'FST_BEARER_AUTH_INVALID_AUTHORIZATION_HEADER'),
  'the token without a scheme': everywhere(missing, 'FST_BEARER_AUTH_INVALID_AUTHORIZATION_HEADER'),
  'the scheme without a token': everywhere(missing, 'FST_BEARER_AUTH_INVALID_AUTHORIZATION_HEADER'),
  malformed: everywhere(invalid, 'malformed'),
  'several words': everywhere(invalid, 'malformed'),
  mistyped: everywhere(invalid, 'malformed'),
  'cut short': everywhere(invalid, 'malformed'),
  'in capitals': everywhere(invalid, 'malformed'),
  unknown: everywhere(invalid, 'unknown'),
  expired: everywhere(invalid, 'expired'),
  revoked: everywhere(invalid, 'revoked'),
  'read-only': {
    reason: 'TOKEN_READ_ONLY',
    create: readOnly,
    list: success(200, '[{"name":"Monstera"}]'),
    delete: readOnly
  },
  'another user\'s': {
    create: success(200, '{"name":"Ivy"}'),
    list: success(200, '[{"name":"Ivy"}]'),
    delete: notFound
  },
  'her own': {
    create: success(200, '{"name":"Ivy"}'),
    list: success(200, '[{"name":"Monstera"},{"name":"Ivy"}]'),
    delete: success(204, '')
  }
}

const requests = {
  create: { method: 'POST', url: '/plants', payload: { id: 2, name: 'Ivy' } },
  list: { method: 'GET', url: '/plants' },
  delete: { method: 'DELETE', url: '/plants/1' }
} as const

for (const [name, { reason, ...operations }] of Object.entries(matrix)) {
  for (const operation of ['create', 'list', 'delete'] as const) {
    t.test(`${operation}, credential ${name}`, async (t) => {
      const authorization = credentials[name]
      const before = log.length
      const answer = await app.inject({ ...requests[operation], headers: { ...authorization !== undefined && { authorization } } })
      const isError = answer.statusCode >= 400
      t.strictSame({
        status: answer.statusCode,
        header: answer.headers['www-authenticate'],
        ...isError ? { error: answer.json() } : { body: answer.body }
      }, operations[operation])
      if (!isError) return
      t.match(answer.headers['content-type'], /^application\/json/)
      t.strictSame(Object.keys(answer.json()), ['error', 'message'])
      if (answer.statusCode === 404) return
      const refusal = log.slice(before).map((line) => JSON.parse(line)).find(({ level }) => level === 'info')
      t.match(refusal, { error: answer.json().error, remoteAddress: '127.0.0.1', reqId: String }, 'logged at info')
      t.equal(refusal.reason, reason)
    })
  }
}

t.test('the name of the scheme is case-insensitive', async (t) => {
  for (const scheme of ['bearer', 'BEARER', 'bEaReR']) {
    const answer = await app.inject({ url: '/plants', headers: { authorization: full.replace('Bearer', scheme) } })
    t.equal(answer.statusCode, 200, scheme)
  }
})

t.test('invalid tokens can\'t be told apart by the answer', async (t) => {
  const answers = await Promise.all(['malformed', 'mistyped', 'unknown', 'expired', 'revoked'].map(async (name) => {
    const { statusCode, body, headers } = await app.inject({ url: '/plants', headers: { authorization: credentials[name] } })
    return { statusCode, body, headers: { ...headers, date: '', 'x-request-id': '' } }
  }))
  for (const answer of answers) t.strictSame(answer, answers[0])
})
