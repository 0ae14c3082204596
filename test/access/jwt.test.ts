import { createHmac } from 'node:crypto'
import { once } from 'node:events'
import { connect } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { setTimeout } from 'node:timers/promises'
import Fastify from 'fastify'
import { exportSPKI, generateKeyPair } from 'jose'
import t, { type Test } from 'tap'
import { createJwtAuthenticate } from '../../src/access/jwt.ts'
import { createKeys } from '../../src/access/jwt-keys.ts'
import { readConfig } from '../../src/config.ts'
import { ApiError, errors } from '../../src/errors.ts'
import { jwtEvents, jwtRejections } from '../../src/events.ts'
import { startApp } from '../support/app.ts'
import { createDatabase } from '../support/database.ts'
import { acceptingJwts, audience, startKeyServer, startProvider } from '../support/identity-provider.ts'
import { parseResponses } from '../support/raw.ts'

const metadata = ', resource_metadata="https://plants.example/.well-known/oauth-protected-resource"'
const invalid = {
  status: 401,
  challenge: `Bearer realm="plants", error="invalid_token"${metadata}`,
  body: { error: 40102, message: 'The bearer token is not valid.' }
}
const unavailable = {
  status: 503,
  challenge: undefined,
  body: { error: 50306, message: 'The keys of the identity provider cannot be fetched.' }
}
const lacks = (scope: string) => ({
  status: 403,
  challenge: `Bearer realm="plants", error="insufficient_scope", scope="${scope}"${metadata}`,
  body: { error: 40302, message: 'The bearer token lacks the scope that this operation needs.' }
})

// For tests that create no plants. Other tests use their own databases, because tests share user names.
const shared = await createDatabase(t)

async function startService (t: Test, issuer: string, environment: Record<string, string> = {}) {
  const service = await startApp(t, { DATABASE_URL: shared, ...acceptingJwts(issuer), ...environment })

  function withToken (token: string) {
    async function send (method: 'GET' | 'POST' | 'DELETE', url: string, payload?: object) {
      const { statusCode, headers, body } = await service.app.inject({
        method, url, headers: { authorization: `Bearer ${token}` }, ...payload && { payload }
      })
      return { status: statusCode, challenge: headers['www-authenticate'], body: body && JSON.parse(body) }
    }
    return {
      list: () => send('GET', '/plants'),
      create: (id: number, name = 'Monstera') => send('POST', '/plants', { id, name }),
      delete: (id: number) => send('DELETE', `/plants/${id}`)
    }
  }

  const rejections = () => service.log.map((line) => JSON.parse(line)).filter(({ error }) => error === 40102)
    .map(({ reason }) => reason)
  return { ...service, withToken, rejections }
}

const success = (body: unknown, status = 200) => ({ status, challenge: undefined, body })

t.test('a real provider', async (t) => {
  const provider = await startProvider(t, ['RS256', 'ES256'])
  const { app, as, withToken } =
    await startService(t, provider.issuer, { DATABASE_URL: await createDatabase(t) })

  for (const alg of ['RS256', 'ES256']) {
    t.test(`a client with ${alg} creates, lists and deletes`, async (t) => {
      const client = withToken(await provider.getToken(alg))
      t.strictSame(await client.create(1), success({ name: 'Monstera' }))
      t.strictSame(await client.list(), success([{ name: 'Monstera' }]))
      t.strictSame(await client.delete(1), success('', 204))
    })
  }

  t.test('the provider\'s users are apart from users of own tokens', async (t) => {
    await withToken(await provider.getToken('RS256')).create(7, 'Fern')
    t.strictSame((await (await as('RS256')).list()).json(), [])
    const sameUser = await as(`${provider.issuer}|RS256`)
    t.strictSame((await sameUser.list()).json(), [{ name: 'Fern' }], 'an operator may name such a user')
  })

  t.test('the granted scopes decide', async (t) => {
    const reader = withToken(await provider.getToken('ES256', 'plants:read'))
    t.strictSame(await reader.list(), success([]))
    t.strictSame(await reader.create(1), lacks('plants:write'))
    t.strictSame(await reader.delete(1), lacks('plants:write'))
  })

  t.test('new keys are accepted with the first token, and the tokens of the old ones rejected', async (t) => {
    const old = withToken(await provider.getToken('ES256'))
    t.strictSame(await old.list(), success([]))
    await provider.useNewKeys()
    t.strictSame(await old.list(), success([]), 'the service has not seen the new keys')
    t.strictSame(await withToken(await provider.getToken('ES256')).list(), success([]))
    t.strictSame(await old.list(), invalid)
  })

  t.test('while the provider is away, known keys and own tokens work', async (t) => {
    const known = withToken(await provider.getToken('RS256'))
    await provider.stop()
    t.match(await known.list(), { status: 200 })
    t.equal((await (await as('alice')).list()).statusCode, 200)
    t.equal((await app.inject('/readyz')).statusCode, 200)
    await provider.restart()
  })
})

t.test('a provider that has never responded gets 503 with Retry-After, and own tokens work', async (t) => {
  const provider = await startKeyServer(t)
  await provider.stop()
  const { app, as, withToken } = await startService(t, provider.issuer)
  const token = await provider.sign()
  t.strictSame(await withToken(token).list(), unavailable)
  const { headers } = await app.inject({ url: '/plants', headers: { authorization: `Bearer ${token}` } })
  t.match(headers, { 'retry-after': '10' })
  t.equal((await app.inject('/readyz')).statusCode, 200)
  t.equal((await (await as('alice')).list()).statusCode, 200)
})

t.test('an unknown key gets 401 when the provider responds, and 503 when it does not', async (t) => {
  const provider = await startKeyServer(t)
  const { withToken } = await startService(t, provider.issuer)
  t.match(await withToken(await provider.sign()).list(), { status: 200 })
  const unknown = withToken(await provider.sign({}, { kid: 'unknown' }))
  t.strictSame(await unknown.list(), invalid)
  const requests = provider.requests.length
  for (let sent = 0; sent < 50; sent++) t.strictSame(await unknown.list(), invalid)
  t.equal(provider.requests.length, requests, 'unknown keys cause no further fetch')

  const other = await startKeyServer(t)
  const { withToken: withOther } = await startService(t, other.issuer)
  t.match(await withOther(await other.sign()).list(), { status: 200 })
  await other.stop()
  t.strictSame(await withOther(await other.sign({}, { kid: 'unknown' })).list(), unavailable)
  t.match(await withOther(await other.sign()).list(), { status: 200 }, 'the known key still works')
})

t.test('a token needs the scope of the operation', async (t) => {
  const provider = await startKeyServer(t)
  const { withToken } = await startService(t, provider.issuer, { DATABASE_URL: await createDatabase(t) })
  for (const [scope, reads, writes] of [
    ['plants:read', true, false], ['plants:write', false, true], ['plants:write plants:read x', true, true],
    ['', false, false], ['plants:*', false, false], ['plants:reads', false, false], [undefined, false, false],
    [{ 'plants:read': true }, false, false], [['plants:read', 1], true, false]
  ] as const) {
    const client = withToken(await provider.sign({ scope, sub: JSON.stringify(scope) ?? 'none' }))
    t.strictSame(await client.list(), reads ? success([]) : lacks('plants:read'), `${scope} lists`)
    t.strictSame(await client.create(1),
      writes ? success({ name: 'Monstera' }) : lacks('plants:write'), `${scope} creates`)
  }
})

t.test('an operation without a scope rejects every JWT and takes own tokens', async (t) => {
  const provider = await startKeyServer(t)
  const environment = { DATABASE_URL: shared, ...acceptingJwts(provider.issuer) }
  const { app, as } = await startApp(t, environment, async (guarded) => {
    guarded.get('/weather', async () => ({ rain: true }))
  })
  const own = (await as('alice', { readOnly: true })).authorization
  const send = (authorization: string) => app.inject({ url: '/weather', headers: { authorization } })
  t.strictSame((await send(own)).json(), { rain: true })
  const response = await send(`Bearer ${await provider.sign({ scope: 'undefined weather:read' })}`)
  t.strictSame(response.json(), lacks('').body)
  t.equal(response.headers['www-authenticate'],
    `Bearer realm="plants", error="insufficient_scope"${metadata}`)
})

t.test('the scopes are in `scope`, or else in `scp`, or in the configured claim', async (t) => {
  const provider = await startKeyServer(t)
  const { withToken } = await startService(t, provider.issuer)
  const other = await startService(t, provider.issuer, { JWT_SCOPE_CLAIM: 'permissions' })
  const text = await provider.sign({ scope: undefined, scp: 'plants:read' })
  const array = await provider.sign({ scope: undefined, scp: ['plants:write', 'plants:read'] })
  const both = await provider.sign({ scope: 'x', scp: 'plants:read' })
  const configured = await provider.sign({ scope: 'x', permissions: ['plants:read'] })
  t.match(await withToken(text).list(), { status: 200 })
  t.match(await withToken(array).list(), { status: 200 })
  t.match(await withToken(both).list(), { status: 403 })
  t.match(await withToken(configured).list(), { status: 403 })
  t.match(await other.withToken(configured).list(), { status: 200 })
  t.match(await other.withToken(text).list(), { status: 403 })
})

t.test('settings name the user claim, the type and the algorithms', async (t) => {
  const provider = await startKeyServer(t)
  const { as, withToken } = await startService(t, provider.issuer, {
    DATABASE_URL: await createDatabase(t),
    JWT_USER_CLAIM: 'employee',
    JWT_TYPE: 'JWT',
    JWT_ALGORITHMS: 'ES256',
    JWT_JWKS_URL: `${provider.issuer}/keys`
  })
  const client = withToken(await provider.sign({ employee: '007' }, { typ: 'JWT' }))
  t.strictSame(await client.create(1), success({ name: 'Monstera' }))
  t.strictSame((await (await as(`${provider.issuer}|007`)).list()).json(), [{ name: 'Monstera' }])
  t.strictSame(await withToken(await provider.sign({ employee: '007' })).list(), invalid, 'at+jwt')
  t.strictSame(await withToken(await provider.sign({}, { typ: 'JWT' })).list(), invalid, 'no user')
  const rs = await startService(t, provider.issuer, { JWT_ALGORITHMS: 'RS256' })
  t.strictSame(await rs.withToken(await provider.sign()).list(), invalid)
  t.strictSame(rs.rejections(), ['algorithm'])
})

t.test('hostile tokens', async (t) => {
  const provider = await startKeyServer(t)
  const { app, rejections, withToken, log } = await startService(t, provider.issuer)
  const { privateKey: foreignKey } = await generateKeyPair('ES256')
  const rsa = await generateKeyPair('RS256', { extractable: true })
  const now = Math.floor(Date.now() / 1000)
  const part = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const claims = { iss: provider.issuer, aud: audience, sub: 'alice', exp: now + 300, scope: 'plants:read' }
  const { jwk, kid } = provider.key
  const pem = await exportSPKI(provider.key.publicKey)
  const hmac = (header: object, secret: string) => {
    const text = `${part(header)}.${part(claims)}`
    return `${text}.${createHmac('sha256', secret).update(text).digest('base64url')}`
  }
  const critical = { alg: 'ES256', kid, typ: 'at+jwt', crit: ['x'], x: 1 }
  const good = await provider.sign()
  const [head, payload, signature] = good.split('.') as [string, string, string]

  const tokens: Record<string, [token: string, reason: string]> = {
    'alg none': [`${part({ alg: 'none', typ: 'at+jwt', kid })}.${part(claims)}.`, 'algorithm'],
    'HS256 with the public key': [hmac({ alg: 'HS256', typ: 'at+jwt', kid }, pem), 'algorithm'],
    'HS256 with the JWK': [hmac({ alg: 'HS256', typ: 'at+jwt', kid }, JSON.stringify(jwk)), 'algorithm'],
    'another algorithm than the key\'s':
      [await provider.sign({}, { alg: 'RS256' }, rsa.privateKey), 'unknown_key'],
    'a foreign key': [await provider.sign({}, {}, foreignKey), 'signature'],
    'a changed payload': [`${head}.${part({ ...claims, sub: 'bob' })}.${signature}`, 'signature'],
    'no signature': [`${head}.${payload}.`, 'signature'],
    'a key in the header': [await provider.sign({}, { jwk, kid: 'mine' }, foreignKey), 'unknown_key'],
    'another issuer': [await provider.sign({ iss: `${provider.issuer}/` }), 'issuer'],
    'no issuer': [await provider.sign({ iss: undefined }), 'issuer'],
    'another audience': [await provider.sign({ aud: 'https://other.example' }), 'audience'],
    'no audience': [await provider.sign({ aud: undefined }), 'audience'],
    'another type': [await provider.sign({}, { typ: 'JWT' }), 'type'],
    'no type': [await provider.sign({}, { typ: undefined }), 'type'],
    'an unknown critical field': [`${part(critical)}.${payload}.${signature}`, 'malformed'],
    'no expiry': [await provider.sign({ exp: undefined }), 'malformed'],
    'an expiry that is no number': [await provider.sign({ exp: '2999-01-01' as never }), 'malformed'],
    expired: [await provider.sign({ exp: now - 31 }), 'expired'],
    'not yet valid': [await provider.sign({ nbf: now + 90 }), 'not_yet_valid'],
    'no user': [await provider.sign({ sub: undefined }), 'user'],
    'an empty user': [await provider.sign({ sub: '' }), 'user'],
    'a number as the user': [await provider.sign({ sub: 42 as never }), 'user'],
    'null as the user': [await provider.sign({ sub: null as never }), 'user'],
    'an object as the user': [await provider.sign({ sub: { toString: 1 } as never }), 'user'],
    'a user with a line break': [await provider.sign({ sub: 'a\nb' }), 'user'],
    'a user of 255 characters': [await provider.sign({ sub: 'x'.repeat(255) }), 'user'],
    'two parts': [`${head}.${payload}`, 'malformed'],
    'four parts': [`${good}.x`, 'malformed'],
    'only dots': ['..', 'malformed'],
    'a space in the signature':
      [`${head}.${payload}.${signature.slice(0, 40)} ${signature.slice(40)}`, 'malformed'],
    'padding after the signature': [`${good}==`, 'malformed'],
    'an own token with a dot': ['plant_.x', 'malformed'],
    '15 kB of junk': [`${'A'.repeat(5000)}.${'B'.repeat(5000)}.${'C'.repeat(5000)}`, 'malformed']
  }
  for (const [name, [token, reason]] of Object.entries(tokens)) {
    t.test(`${name} gets the same 401 as every invalid token`, async (t) => {
      t.strictSame(await withToken(token).list(), invalid)
      t.strictSame(await withToken(token).list(), invalid, 'a second time')
      t.strictSame(rejections().slice(-2), [reason, reason])
    })
  }

  t.test('every reason has a token here', async (t) => {
    const reasons = new Set(Object.values(tokens).map(([, reason]) => reason))
    t.strictSame([...reasons].sort(), jwtRejections.toSorted())
  })

  t.test('tolerated are 30 seconds, several audiences and other spellings of the type', async (t) => {
    for (const [token, name] of [
      [await provider.sign({ exp: now - 20 }), 'expired 20 s ago'],
      [await provider.sign({ nbf: now + 20 }), 'valid in 20 s'],
      [await provider.sign({ aud: ['https://other.example', audience] }), 'two audiences'],
      [await provider.sign({}, { typ: 'application/AT+JWT' }), 'the whole media type'],
      [await provider.sign({}, { kid: undefined }), 'no key id and one key']
    ] as const) t.match(await withToken(token).list(), { status: 200 }, name)
  })

  t.test('a broken key of the provider gives 503 for its tokens, and no other', async (t) => {
    provider.keys.push({ kty: 'RSA', kid: 'broken', alg: 'RS256', n: 'AQAB', e: 'AQAB' })
    const other = await startService(t, provider.issuer)
    const broken = await provider.sign({}, { alg: 'RS256', kid: 'broken' }, rsa.privateKey)
    t.strictSame(await other.withToken(broken).list(), unavailable)
    t.match(await other.withToken(good).list(), { status: 200 })
  })

  t.test('no token is in the log', async (t) => {
    t.notMatch(log.join(), signature)
    t.notMatch(log.join(), payload)
    t.match(await app.inject('/livez'), { statusCode: 200 })
  })
})

/** Counts the checks of JWTs from now on, by result. */
function countChecks (t: Test): Record<string, number> {
  const counts: Record<string, number> = {}
  const count = ({ result }: { result: string }) => { counts[result] = (counts[result] ?? 0) + 1 }
  jwtEvents.subscribe(count)
  t.teardown(() => jwtEvents.unsubscribe(count))
  return counts
}

/** Starts an identity provider, but no service. Tests call the returned `authenticate` directly. */
async function startChecks (t: Test) {
  const provider = await startKeyServer(t)
  const { issuer } = provider
  const config = readConfig(acceptingJwts(issuer))
  const times = { refreshMs: 3_600_000, retryMs: 3_600_000, cooldownMs: 0, timeoutMs: 5000 }
  const keys = createKeys({ issuer, jwksUrl: undefined, maxAgeMs: 3_600_000 }, Fastify().log, times)
  t.teardown(keys.close)
  const authenticate = createJwtAuthenticate(keys, config, new Set(['plants:read']))
  return { authenticate, config, counts: countChecks(t), keys, provider }
}

t.test('a signature is checked once, and a rejected one each time', async (t) => {
  const provider = await startKeyServer(t)
  const { withToken } = await startService(t, provider.issuer)
  const counts = countChecks(t)
  const [good, bad] = [withToken(await provider.sign()), withToken(await provider.sign({ iss: 'x' }))]
  for (let sent = 0; sent < 3; sent++) {
    t.match(await good.list(), { status: 200 })
    t.strictSame(await bad.list(), invalid)
  }
  t.strictSame(counts, { verified: 1, cached: 2, rejected: 3 })
})

t.test('the times of a cached token are compared at each use', async (t) => {
  const provider = await startKeyServer(t)
  const { withToken, rejections } = await startService(t, provider.issuer)
  const now = Math.floor(Date.now() / 1000)
  const client = withToken(await provider.sign({ nbf: now - 60, exp: now + 60 }))
  t.match(await client.list(), { status: 200 })
  const real = Date.now
  let shiftMs = 0
  t.intercept(Date, 'now', { value: () => real() + shiftMs })
  for (const [seconds, status] of [[80, 200], [95, 401], [-80, 200], [-95, 401], [0, 200]] as const) {
    shiftMs = seconds * 1000
    t.match(await client.list(), { status }, `${seconds} s later`)
  }
  t.strictSame(rejections(), ['expired', 'not_yet_valid'])
})

t.test('a token is admitted before the check of its signature, unless it is cached', async (t) => {
  const { authenticate, counts, provider } = await startChecks(t)
  const [known, unknown] = [await provider.sign(), await provider.sign({ sub: 'bob' })]
  let asked = 0
  await authenticate(known, () => { asked++ })
  t.equal(asked, 1)
  const refuse = () => { throw new ApiError(errors.OVERLOADED) }
  await authenticate(known, refuse)
  await t.rejects(authenticate(unknown, refuse), { name: 'OVERLOADED' })
  await t.rejects(authenticate('x.y.', refuse), { name: 'OVERLOADED' })
  t.match(counts, { verified: 1, cached: 1 })
})

t.test('a cached token is verified again after a minute, and after a change of the keys', async (t) => {
  const { authenticate, config, counts, keys, provider } = await startChecks(t)
  const token = await provider.sign({ scope: 'plants:read x' })
  t.strictSame((await authenticate(token)).scopes, new Set(['plants:read']), 'other scopes take no memory')
  const real = performance.now.bind(performance)
  let shiftMs = 59_000
  const intercepted = t.intercept(performance, 'now', { value: () => real() + shiftMs })
  await authenticate(token)
  t.strictSame(counts, { verified: 1, cached: 1 })
  shiftMs = 60_001
  await authenticate(token)
  t.strictSame(counts, { verified: 2, cached: 1 })
  intercepted.restore()

  provider.keys.push({ ...provider.key.jwk, kid: 'another' })
  const another = await provider.sign({}, { kid: 'another' })
  await authenticate(another)
  await authenticate(token)
  t.strictSame(counts, { verified: 4, cached: 1 })
  const before = keys.current()
  provider.keys.shift()
  await keys.refetch()
  await t.rejects(authenticate(token), { name: 'TOKEN_INVALID', cause: 'unknown_key' })
  await authenticate(another)

  let current = before
  const changing = createJwtAuthenticate({ ...keys, current: () => current }, config, new Set())
  const pending = changing(token)
  current = keys.current()
  await changing(another)
  await pending
  await t.rejects(changing(token), { name: 'TOKEN_INVALID' }, 'the keys changed during the check')
})

t.test('a token that expires before the body arrives changes nothing', async (t) => {
  const provider = await startKeyServer(t)
  const { as, listen, withToken } =
    await startService(t, provider.issuer, { DATABASE_URL: await createDatabase(t) })
  const { hostname, port } = new URL(await listen())
  const token = await provider.sign({ exp: Math.floor(Date.now() / 1000) - 28 })
  const socket = connect({ host: hostname, port: Number(port) })
  t.teardown(() => socket.destroy())
  const body = '{"id":1,"name":"Monstera"}'
  socket.write(`POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n` +
    'Content-Type: application/json\r\nExpect: 100-continue\r\nConnection: close\r\n' +
    `Content-Length: ${body.length}\r\n\r\n`)
  const [head] = await once(socket, 'data')
  t.match(String(head), /^HTTP\/1\.1 100 /)
  while ((await withToken(token).list()).status === 200) await setTimeout(50)
  socket.end(body)
  const [response] = parseResponses(await buffer(socket))
  t.match(response, { status: 401, headers: { 'www-authenticate': invalid.challenge } })
  t.strictSame((await (await as(`${provider.issuer}|alice`)).list()).json(), [])
})

t.test('FAILED_AUTH_RATE rejects JWTs that are not cached, and serves cached ones', async (t) => {
  const provider = await startKeyServer(t)
  const { withToken } = await startService(t, provider.issuer, { FAILED_AUTH_RATE: '2/m' })
  const known = withToken(await provider.sign())
  t.match(await known.list(), { status: 200 })
  const forged = withToken(await provider.sign({ iss: 'x' }))
  for (const status of [401, 401, 429]) t.match(await forged.list(), { status })
  const fresh = withToken(await provider.sign({ sub: 'bob' }))
  t.match(await fresh.list(), { status: 429, body: { error: 42902 } })
  t.match(await known.list(), { status: 200 })
})

t.test('an own token that looks like no JWT is looked up as before', async (t) => {
  const provider = await startKeyServer(t)
  const { as, withToken } = await startService(t, provider.issuer)
  const alice = await as('alice')
  t.strictSame(await withToken(alice.authorization.replace('Bearer ', '')).list(), success([]))
  const readOnly = await as('alice', { readOnly: true })
  t.match((await readOnly.create({ id: 1, name: 'Ivy' })).json(), { error: 40301 })
  t.strictSame(await withToken('plant_1').list(), invalid)
})

t.test('resource metadata name the provider where the audience is an https URL', async (t) => {
  const provider = await startKeyServer(t)
  const metadataOf = async (JWT_AUDIENCE: string, path: string) => {
    const { app } = await startService(t, provider.issuer, { JWT_AUDIENCE })
    const { headers } = await app.inject('/plants')
    return { ...await app.inject(path), challenge: headers['www-authenticate'] }
  }
  const wellKnown = '/.well-known/oauth-protected-resource'
  const plain = await metadataOf(audience, wellKnown)
  t.strictSame(JSON.parse(plain.body), {
    resource: audience,
    authorization_servers: [provider.issuer],
    scopes_supported: ['plants:write', 'plants:read'],
    bearer_methods_supported: ['header']
  })
  t.equal(plain.challenge, `Bearer realm="plants"${metadata}`)

  const below = await metadataOf('https://example.org:8443/v1:x/', `${wellKnown}/v1:x`)
  t.equal(JSON.parse(below.body).resource, 'https://example.org:8443/v1:x/')
  t.equal(below.challenge,
    `Bearer realm="plants", resource_metadata="https://example.org:8443${wellKnown}/v1:x"`)

  const otherAudiences =
    ['plants', 'http://plants.example', 'https://', 'https://plants.example/*', 'https://x/?y']
  for (const text of otherAudiences) {
    const { statusCode, challenge } = await metadataOf(text, wellKnown)
    t.strictSame({ statusCode, challenge }, { statusCode: 404, challenge: 'Bearer realm="plants"' }, text)
  }
})

t.test('the OpenAPI document names the scheme and the scope of each operation', async (t) => {
  const { app } = await startService(t, 'https://id.example')
  const { paths, components: { securitySchemes } } = (await app.inject('/openapi.json')).json()
  t.match(securitySchemes.identityProvider,
    { type: 'http', scheme: 'bearer', bearerFormat: 'JWT', description: /https:\/\/id\.example/ })
  const securityOf = (scope: string) => [{ bearerAuth: [] }, { identityProvider: [scope] }]
  t.strictSame(paths['/plants'].get.security, securityOf('plants:read'))
  t.strictSame(paths['/plants'].post.security, securityOf('plants:write'))
  t.strictSame(paths['/plants/{id}'].delete.security, securityOf('plants:write'))
})

t.test('metrics count checks and fetches, and show the age of the keys', async (t) => {
  const provider = await startKeyServer(t)
  const { withToken, observers: [metrics] } = await startService(t, provider.issuer, { METRICS_PORT: '0' })
  const good = withToken(await provider.sign())
  await good.list()
  await good.list()
  await withToken(await provider.sign({ iss: 'x' })).list()
  await provider.stop()
  await withToken(await provider.sign({}, { kid: 'unknown' })).list()
  const text = await (await fetch(metrics?.url as string)).text()
  for (const line of [
    'plant_store_jwt_checks_total{result="verified"} 1',
    'plant_store_jwt_checks_total{result="cached"} 1',
    'plant_store_jwt_checks_total{result="rejected"} 1',
    'plant_store_jwt_checks_total{result="unavailable"} 1',
    'plant_store_jwt_key_fetches_total{result="succeeded"} 1',
    'plant_store_jwt_key_fetches_total{result="failed"} 1',
    'plant_store_credentials_refused_total{reason="issuer"} 1',
    'plant_store_credentials_refused_total{reason="audience"} 0'
  ]) t.ok(text.includes(`${line}\n`), line)
  t.match(text, /^plant_store_jwt_keys_age_seconds [\d.e-]+$/m)
})
