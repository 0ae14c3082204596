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
const notFound = {
  status: 404, error: { error: 40402, message: 'You have no plant with this id.' }, header: undefined
}

interface Expectation { reason?: string, create: object, list: object, delete: object }
const everywhere = (response: object, reason: string) =>
  ({ reason, create: response, list: response, delete: response })

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
    t.test(`${operation} with credentials: ${name}`, async (t) => {
      const authorization = credentials[name]
      const before = log.length
      const response = await app.inject({
        ...requests[operation], headers: { ...authorization !== undefined && { authorization } }
      })
      const isError = response.statusCode >= 400
      t.strictSame({
        status: response.statusCode,
        header: response.headers['www-authenticate'],
        ...isError ? { error: response.json() } : { body: response.body }
      }, operations[operation])
      if (!isError) return
      t.match(response.headers['content-type'], /^application\/json/)
      t.strictSame(Object.keys(response.json()), ['error', 'message'])
      if (response.statusCode === 404) return
      const rejection =
        log.slice(before).map((line) => JSON.parse(line)).find(({ level }) => level === 'info')
      t.match(rejection, { error: response.json().error, remoteAddress: '127.0.0.1', reqId: String },
        'logged at info')
      t.equal(rejection.reason, reason)
    })
  }
}

t.test('the name of the scheme is case-insensitive', async (t) => {
  for (const scheme of ['bearer', 'BEARER', 'bEaReR']) {
    const response = await app.inject({
      url: '/plants', headers: { authorization: full.replace('Bearer', scheme) }
    })
    t.equal(response.statusCode, 200, scheme)
  }
})

t.test('all invalid tokens get the same response', async (t) => {
  const responses = await Promise.all([
    'malformed', 'mistyped', 'unknown', 'expired', 'revoked'
  ].map(async (name) => {
    const { statusCode, body, headers } = await app.inject({
      url: '/plants', headers: { authorization: credentials[name] }
    })
    return { statusCode, body, headers: { ...headers, date: '', 'x-request-id': '' } }
  }))
  for (const response of responses) t.strictSame(response, responses[0])
})
