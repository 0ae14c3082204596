import { hash } from 'node:crypto'
import Fastify from 'fastify'
import type { JWTPayload } from 'jose'
import t, { type Test } from 'tap'
import { createJwtAuthenticator, serveResourceMetadata } from '../../../src/access/jwt/jwt.ts'
import { createKeys } from '../../../src/access/jwt/keys.ts'
import { readConfig } from '../../../src/config.ts'
import { jwtEvents, jwtRejections } from '../../../src/telemetry-events.ts'
import { rejectMalformedRequests } from '../../../src/http/request-checks.ts'
import { authenticateWith } from '../../support/authenticate.ts'
import { createDatabase } from '../../support/database.ts'
import { acceptingJwts, audience, createKey, startKeyServer } from '../../support/identity-provider.ts'
import {
  invalid, lacks, metadata, pastExpiry, startJwtService, success, unavailable
} from '../../support/jwt-service.ts'

const shared = await createDatabase(t)

const startService = (t: Test, issuer: string, environment: Record<string, string> = {}) =>
  startJwtService(t, issuer, { DATABASE_URL: shared, ...environment })

/** Starts an identity provider, but no service. Tests call the returned `authenticate` directly. */
async function startChecks (t: Test, settings: Record<string, string> = {}) {
  const provider = await startKeyServer(t)
  const config = readConfig({ ...acceptingJwts(provider.issuer), ...settings })
  const times = { refreshMs: 3_600_000, retryMs: 3_600_000, cooldownMs: 0, timeoutMs: 5000 }
  const keys = createKeys(config, Fastify().log, times)
  t.teardown(keys.close)
  const authenticator = createJwtAuthenticator(keys, config, new Set(['plants:read', 'x']))
  const authenticate = authenticateWith(authenticator)
  const rejects = (token: string, cause: string) =>
    t.rejects(authenticate(token), { name: 'TOKEN_INVALID', cause }, cause)
  return { authenticate, config, isNew: authenticator.isNew, keys, provider, rejects }
}

t.test('a provider that has never responded gets 503, and own tokens work', async (t) => {
  const provider = await startKeyServer(t)
  await provider.stop()
  const { as, untilReadiness, withToken } = await startService(t, provider.issuer)
  t.strictSame(await withToken(await provider.sign()).list(), unavailable)
  await untilReadiness(200)
  const own = await as('alice', { readOnly: true })
  t.equal((await own.list()).statusCode, 200)
  t.match((await own.create({ id: 1, name: 'Ivy' })).json(), { error: 40301 })
  t.strictSame(await withToken('plant_1').list(), invalid)
})

t.test('a JWT without a key id may be signed by any of four keys of its algorithm', async (t) => {
  const { authenticate, provider, rejects } = await startChecks(t)
  const broken = { kty: 'EC', crv: 'P-256', kid: 'broken', alg: 'ES256', x: 'AA', y: 'AA' }
  const keys = [provider.key, ...await Promise.all(['ES256', 'ES256', 'ES256', 'ES256'].map(createKey))]
  const rsa = await createKey('RS256')
  provider.keys.splice(0, 1, rsa.jwk, broken, ...keys.map(({ jwk }) => jwk))
  const sign = (key: typeof rsa, claims = {}) =>
    provider.sign(claims, { kid: undefined, alg: key.alg }, key.privateKey)
  for (const key of [rsa, ...keys.slice(0, 4)]) await authenticate(await sign(key))
  await rejects(await sign(keys[4] as typeof rsa), 'unknown_key')
  await rejects(await sign(await createKey('ES256')), 'unknown_key')
  await rejects(await sign(keys[2] as typeof rsa, { aud: 'x' }), 'audience')
  const ofBroken = await provider.sign({}, { kid: 'broken' })
  await t.rejects(authenticate(ofBroken), { name: 'KEYS_UNAVAILABLE' }, 'a broken key gives 503')
})

t.test('a JWT without a key id is accepted after a rotation of the keys', async (t) => {
  const { authenticate, keys, provider, rejects } = await startChecks(t)
  await keys.refetch()
  const [second, third] = [await createKey('ES256'), await createKey('ES256')]
  const signedBy = (key: typeof second) => provider.sign({}, { kid: undefined }, key.privateKey)
  provider.keys.push(second.jwk)
  t.match(await authenticate(await signedBy(second)), { user: /alice$/ }, 'the old set has one key')
  provider.keys.shift()
  provider.keys.push(third.jwk)
  t.match(await authenticate(await signedBy(third)), { user: /alice$/ }, 'the old set has two keys')
  await rejects(await signedBy(provider.key), 'unknown_key')

  const fetches = provider.requests.length
  const forged = await provider.sign({}, { kid: third.kid }, provider.key.privateKey)
  await rejects(forged, 'signature')
  t.equal(provider.requests.length, fetches, 'a wrong signature of a named key causes no fetch')
  await provider.stop()
  await t.rejects(authenticate(await signedBy(await createKey('ES256'))), { name: 'KEYS_UNAVAILABLE' })
  await authenticate(await provider.sign({}, { kid: third.kid }, third.privateKey))
})

t.test('a token needs the scope of the operation', async (t) => {
  const provider = await startKeyServer(t)
  const { withToken } = await startService(t, provider.issuer)
  for (const [scope, reads, writes] of [
    ['plants:read', true, false], ['plants:write', false, true], ['plants:write plants:read x', true, true],
    ['plants:* plants:reads', false, false], [undefined, false, false]
  ] as const) {
    const client = withToken(await provider.sign({ scope, sub: JSON.stringify(scope) ?? 'none' }))
    t.strictSame(await client.list(), reads ? success([]) : lacks('plants:read'), `${scope} lists`)
    t.strictSame(await client.create(1),
      writes ? success({ name: 'Monstera' }) : lacks('plants:write'), `${scope} creates`)
  }
})

t.test('the scopes are in `scope`, or else in `scp`, or in the configured claim', async (t) => {
  const services = [await startChecks(t), await startChecks(t, { JWT_SCOPE_CLAIM: 'permissions' })]
  const cases: Array<[claims: JWTPayload, usual: string[], configured: string[]]> = [
    [{ scope: 'plants:read unknown' }, ['plants:read'], []],
    [{ scope: ['x', 1, 'plants:read'] }, ['x', 'plants:read'], []],
    [{ scope: { 'plants:read': true } }, [], []],
    [{ scope: undefined, scp: 'plants:read x' }, ['plants:read', 'x'], []],
    [{ scope: undefined, scp: ['x'] }, ['x'], []],
    [{ scope: 'x', scp: 'plants:read', permissions: ['plants:read'] }, ['x'], ['plants:read']]
  ]
  for (const [claims, ...expected] of cases) {
    for (const [index, { authenticate, provider }] of services.entries()) {
      t.strictSame([...(await authenticate(await provider.sign(claims))).scopes ?? []], expected[index])
    }
  }
})

t.test('settings name the user claim, the type, the URL of the keys and the algorithms', async (t) => {
  const provider = await startKeyServer(t)
  const { as, withToken } = await startService(t, provider.issuer, {
    JWT_USER_CLAIM: 'employee', JWT_TYPE: 'JWT', JWT_JWKS_URL: `${provider.issuer}/keys`
  })
  const client = withToken(await provider.sign({ employee: '007' }, { typ: 'JWT' }))
  t.strictSame(await client.create(1), success({ name: 'Monstera' }))
  t.strictSame((await (await as(`${provider.issuer}|007`)).list()).json(), [{ name: 'Monstera' }])
  t.strictSame(await withToken(await provider.sign({ employee: '007' })).list(), invalid, 'at+jwt')
  t.strictSame(await withToken(await provider.sign({}, { typ: 'JWT' })).list(), invalid, 'no user')
  t.strictSame(provider.requests, ['/keys'], 'the URL replaces discovery')
  const rs = await startChecks(t, { JWT_ALGORITHMS: 'RS256' })
  await rs.rejects(await rs.provider.sign(), 'algorithm')
})

t.test('JWT_TYPE lists the types, and only `none` accepts a JWT without a type', async (t) => {
  const headers = [{ typ: undefined }, { typ: 'JWT' }, { typ: 'at+jwt' }, { typ: 'application/AT+JWT' },
    { typ: 'none' }, { typ: '' }, { typ: null }, { typ: 1 }, { typ: ['at+jwt'] }]
  for (const [JWT_TYPE, ...accepted] of [
    ['none', undefined], ['JWT, none', undefined, 'JWT'], ['at+jwt', 'at+jwt', 'application/AT+JWT'],
    ['at+jwt,JWT', 'JWT', 'at+jwt', 'application/AT+JWT']
  ] as const) {
    const { authenticate, provider } = await startChecks(t, { JWT_TYPE })
    const results = await Promise.all(headers.map(async (header) =>
      authenticate(await provider.sign({}, header)).then(() => [header.typ], () => [])))
    t.strictSame(results.flat(), accepted, JWT_TYPE)
  }
})

t.test('a JWT with another spelling of its signature is malformed, and is not cached', async (t) => {
  const { authenticate, provider, rejects } = await startChecks(t)
  const token = await provider.sign()
  await authenticate(token)
  const digits = [...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_']
  const bytesOf = (text: string) => Buffer.from(text.split('.')[2] as string, 'base64url')
  const variants = digits.map((last) => token.slice(0, -1) + last)
    .filter((text) => text !== token && bytesOf(text).equals(bytesOf(token)))
  t.equal(variants.length, 15)
  for (const variant of [...variants, `${token}=`]) await rejects(variant, 'malformed')
})

t.test('hostile tokens get the same 401 as every invalid token, and no token is in the log', async (t) => {
  const provider = await startKeyServer(t)
  const { rejections, withToken, log } = await startService(t, provider.issuer)
  const [foreign, rsa] = [await createKey('ES256'), await createKey('RS256')]
  const now = Math.floor(Date.now() / 1000)
  const [head, payload, signature] = (await provider.sign()).split('.') as [string, string, string]
  const withHead = (fields: object) =>
    `${Buffer.from(JSON.stringify(fields)).toString('base64url')}.${payload}.${signature}`

  const tokens: Record<string, [token: string | Promise<string>, reason: string]> = {
    'a header that is no JSON': [`x.${payload}.${signature}`, 'malformed'],
    'alg none': [withHead({ alg: 'none', typ: 'at+jwt' }), 'algorithm'],
    'an unknown critical field': [withHead({ alg: 'ES256', crit: ['x'], x: 1 }), 'malformed'],
    'another algorithm than the key\'s': [provider.sign({}, { alg: 'RS256' }, rsa.privateKey), 'unknown_key'],
    'a foreign key': [provider.sign({}, {}, foreign.privateKey), 'signature'],
    'a key in the header':
      [provider.sign({}, { jwk: foreign.jwk, kid: 'mine' }, foreign.privateKey), 'unknown_key'],
    'another issuer': [provider.sign({ iss: `${provider.issuer}/` }), 'issuer'],
    'another audience': [provider.sign({ aud: 'https://other.example' }), 'audience'],
    'another type': [provider.sign({}, { typ: 'JWT' }), 'type'],
    'no expiry': [provider.sign({ exp: undefined }), 'malformed'],
    expired: [provider.sign({ exp: now - 31 }), 'expired'],
    'not yet valid': [provider.sign({ nbf: now + 90 }), 'not_yet_valid'],
    'an empty user': [provider.sign({ sub: '' }), 'user'],
    'a number as the user': [provider.sign({ sub: 42 as never }), 'user'],
    'a user with a line break': [provider.sign({ sub: 'a\nb' }), 'user'],
    'a user of 255 characters': [provider.sign({ sub: 'x'.repeat(255) }), 'user'],
    'a space in the signature':
      [`${head}.${payload}.${signature.slice(0, 40)} ${signature.slice(40)}`, 'malformed']
  }
  for (const [name, [token, reason]] of Object.entries(tokens)) {
    const expected = reason === 'expired' ? pastExpiry : invalid
    t.strictSame(await withToken(await token).list(), expected, name)
    t.equal(rejections().at(-1), reason, name)
  }
  t.strictSame([...new Set(rejections())].sort(), jwtRejections.toSorted(), 'every reason has a token here')
  t.equal(provider.requests.length, 4, 'several unknown keys cause one further fetch, of two documents')
  const late = withToken(await provider.sign({ exp: now - 20 }))
  t.match(await late.list(), { status: 200 }, 'clocks may differ by 30 s')
  for (const secret of [payload, signature]) t.notMatch(log.join(), secret)
})

t.test('a cached token is verified again after a minute, and after a change of the keys', async (t) => {
  const { authenticate, config, isNew, keys, provider } = await startChecks(t)
  const token = await provider.sign()
  t.strictSame([isNew(token), isNew(`${token}=`), isNew('a.b')], [true, false, false])
  const counts: Record<string, number> = {}
  jwtEvents.subscribe(({ result }) => { counts[result] = (counts[result] ?? 0) + 1 })
  const real = performance.now.bind(performance)
  let shiftMs = 0
  const intercepted = t.intercept(performance, 'now', { value: () => real() + shiftMs })
  const short = await provider.sign({ exp: Math.floor(Date.now() / 1000) + 10 })
  // The service tolerates clocks that differ by 30 s.
  for (const [checked, atMs, wasNew, verified, cached] of [
    [token, 0, true, 1, 0], [token, 59_000, false, 1, 1], [token, 60_001, false, 2, 1],
    [short, 60_001, true, 3, 1], [short, 95_000, false, 3, 2], [short, 105_000, false, 4, 2]
  ] as const) {
    shiftMs = atMs
    t.equal(isNew(checked), wasNew)
    await authenticate(checked)
    t.strictSame(counts, { verified, ...cached > 0 && { cached } })
  }
  intercepted.restore()

  provider.keys.push({ ...provider.key.jwk, kid: 'another' })
  const another = await provider.sign({}, { kid: 'another' })
  await authenticate(another)
  await authenticate(token)
  t.strictSame(counts, { verified: 6, cached: 2 })
  const before = keys.current()
  provider.keys.shift()
  await keys.refetch()
  await provider.stop()
  await t.rejects(authenticate(token), { name: 'KEYS_UNAVAILABLE' }, 'the key is unknown')
  t.notOk(isNew(token), 'a 503 does not make the token a guess')
  await provider.restart()
  await t.rejects(authenticate(token), { name: 'TOKEN_INVALID', cause: 'unknown_key' })
  t.ok(isNew(token), 'no longer cached')

  let current = before
  const changing =
    authenticateWith(createJwtAuthenticator({ ...keys, current: () => current }, config, new Set()))
  const pending = changing(token)
  current = keys.current()
  await changing(another)
  await pending
  await t.rejects(changing(token), { name: 'TOKEN_INVALID' }, 'the keys changed during the check')
})

t.test('FAILED_AUTH_RATE counts invalid JWTs and tokens of the service together', async (t) => {
  const provider = await startKeyServer(t)
  const { as, withToken } = await startService(t, provider.issuer, { FAILED_AUTH_RATE: '2/m' })
  const known = withToken(await provider.sign())
  t.match(await known.list(), { status: 200 })
  t.strictSame(await withToken(await provider.sign({ iss: 'x' })).list(), invalid)
  t.strictSame(await withToken('plant_1').list(), invalid)
  const other = withToken(await provider.sign({ sub: 'bob' }))
  t.match(await other.list(), { status: 429, body: { error: 42902 } })
  t.equal((await (await as('alice')).list()).statusCode, 429)
  t.match(await known.list(), { status: 200 })
})

t.test('the log has the `jti` of a JWT, or else a hash of what is signed', async (t) => {
  const provider = await startKeyServer(t)
  const { log, withToken } = await startService(t, provider.issuer, { LOG_LEVEL: 'info' })
  for (const jti of ['trrtcc:6f1c', undefined, '', 'a\nb', 42, 'x'.repeat(256)]) {
    const token = await provider.sign({ jti: jti as string, sub: crypto.randomUUID() })
    await withToken(token).create(1)
    const signed = token.slice(0, token.lastIndexOf('.'))
    t.match(JSON.parse(log.at(-1) as string), {
      msg: 'request completed',
      user: `${provider.issuer}|`,
      tokenId: jti === 'trrtcc:6f1c' ? jti : hash('sha256', signed).slice(0, 16)
    })
  }
  await withToken(await provider.sign({ jti: 'reader', scope: 'plants:read' })).create(1)
  t.match(JSON.parse(log.at(-1) as string), { error: 40302, tokenId: 'reader' })
})

const wellKnown = '/.well-known/oauth-protected-resource'

t.test('resource metadata and the OpenAPI document name the provider and the scopes', async (t) => {
  const provider = await startKeyServer(t)
  const { app } = await startService(t, provider.issuer)
  t.strictSame((await app.inject(wellKnown)).json(), {
    resource: audience,
    authorization_servers: [provider.issuer],
    scopes_supported: ['plants:write', 'plants:read'],
    bearer_methods_supported: ['header']
  })
  t.equal((await app.inject('/plants')).headers['www-authenticate'], `Bearer realm="plants"${metadata}`)
  const { paths, components: { securitySchemes } } = (await app.inject('/openapi.json')).json()
  t.match(securitySchemes.identityProvider,
    { type: 'http', scheme: 'bearer', bearerFormat: 'JWT', description: provider.issuer })
  const securityOf = (scope: string) => [{ bearerAuth: [] }, { identityProvider: [scope] }]
  t.strictSame(paths['/plants'].get.security, securityOf('plants:read'))
  t.strictSame(paths['/plants'].post.security, securityOf('plants:write'))
  t.strictSame(paths['/plants/{id}'].delete.security, securityOf('plants:write'))
})

/** Returns the URL of the resource metadata in `WWW-Authenticate`, and the response to a request for it. */
async function findMetadata (resource: string) {
  const app = Fastify()
  rejectMalformedRequests(app)
  const settings = readConfig({ JWT_ISSUER: 'https://id.example', JWT_AUDIENCE: resource })
  serveResourceMetadata(app, settings, new Set())
  app.get('/', (_request, reply) => reply.header('www-authenticate', 'Bearer').send())
  const challenge = String((await app.inject('/')).headers['www-authenticate'])
  const url = /^Bearer, resource_metadata="(.*)"$/.exec(challenge)?.[1]
  const response = await app.inject(url === undefined ? wellKnown : new URL(url).pathname)
  return { url, response }
}

t.test('the metadata of an https audience are served below the path of the audience', async (t) => {
  for (const [audience, advertised] of [
    ['https://example.org', wellKnown],
    ['https://example.org/', wellKnown],
    ['https://example.org:8443/v1/x.y_z~-/', `${wellKnown}/v1/x.y_z~-`],
    [`https://example.org/${'long'.repeat(100)}`, `${wellKnown}/${'long'.repeat(100)}`]
  ] as const) {
    const { url, response } = await findMetadata(audience)
    t.strictSame([url, response.statusCode], [new URL(audience).origin + advertised, 200])
    t.equal(response.json().resource, audience)
  }
  for (const audience of [
    'plants', 'http://plants.example', 'https://', 'https://x/?y', 'https://x/#y', 'https://x/a b',
    ...['*', ':a', '%', '%41', '%2F', 'a//b', 'a/../b', '\u00e4'].map((path) => `https://x/${path}`)
  ]) {
    const { url, response } = await findMetadata(audience)
    t.strictSame([url, response.statusCode], [undefined, 404], audience)
  }
})

t.test('metrics count checks and fetches, and show the age of the keys', async (t) => {
  const provider = await startKeyServer(t)
  const { withToken, metricsUrl } = await startService(t, provider.issuer, { METRICS_PORT: '0' })
  const good = withToken(await provider.sign())
  await good.list()
  await good.list()
  await withToken(await provider.sign({ iss: 'x' })).list()
  await provider.stop()
  await withToken(await provider.sign({}, { kid: 'unknown' })).list()
  const text = await (await fetch(metricsUrl)).text()
  for (const series of [
    ...['verified', 'cached', 'rejected', 'unavailable'].map((result) =>
      `jwt_checks_total{result="${result}"} 1`),
    ...['succeeded', 'failed'].map((result) => `jwt_key_fetches_total{result="${result}"} 1`),
    'credentials_refused_total{reason="issuer"} 1', 'credentials_refused_total{reason="audience"} 0'
  ]) t.ok(text.includes(`plant_store_${series}\n`), series)
  t.match(text, /^plant_store_jwt_keys_age_seconds [\d.e-]+$/m)
})
