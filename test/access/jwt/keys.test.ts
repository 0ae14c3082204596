import { EventEmitter, once } from 'node:events'
import Fastify from 'fastify'
import t, { type Test } from 'tap'
import { createKeys } from '../../../src/access/jwt/keys.ts'
import { readConfig } from '../../../src/config.ts'
import { keyEvents } from '../../../src/telemetry-events.ts'
import { acceptingJwts, startKeyServer } from '../../support/identity-provider.ts'
import { matchEach } from '../../support/match.ts'

// The first two timers never fire. Without a cooldown, every `refetch` fetches the keys.
const never = { refreshMs: 3_600_000, retryMs: 3_600_000, cooldownMs: 0, timeoutMs: 5000 }

async function start (t: Test, changes: Partial<typeof never> = {}) {
  const provider = await startKeyServer(t)
  const log: Array<Record<string, unknown>> = []
  const stream = { write: (line: string) => { log.push(JSON.parse(line)) } }
  const times = { ...never, ...changes }
  const config = readConfig(acceptingJwts(provider.issuer))
  const keys = createKeys(config, Fastify({ logger: { stream } }).log, times)
  t.teardown(keys.close)
  return { provider, keys, log, times }
}

const fetched = new EventEmitter()
keyEvents.subscribe(({ result }) => fetched.emit('fetch', result))
const nextFetch = async (): Promise<string> => (await once(fetched, 'fetch'))[0]
// The service's timers do not keep the test process alive. This timer does.
const alive = setInterval(() => {}, 1000)
t.teardown(() => clearInterval(alive))

const discovery = '/.well-known/openid-configuration'
const fetchFailed = 'The keys of the identity provider cannot be fetched.'

t.test('discovery names the keys, and an unchanged set stays the same object', async (t) => {
  const { provider, keys, log } = await start(t)
  t.equal(keys.current(), undefined)
  const first = await keys.refetch()
  t.equal(keys.current(), first)
  t.strictSame(first.jwks(), { keys: provider.keys })
  t.strictSame(provider.requests, [discovery, '/keys'])
  t.equal(await keys.refetch(), first)
  provider.keys.push({ ...provider.key.jwk, kid: 'another' })
  const second = await keys.refetch()
  t.not(second, first)
  t.equal(keys.current(), second)
  matchEach(t, log, [{ level: 30, msg: 'the keys of the identity provider are fetched' }])
})

t.test('many calls share one fetch within the cooldown, also while the provider fails', async (t) => {
  const { provider, keys } = await start(t, { cooldownMs: 3_600_000 })
  const sets = await Promise.all(Array.from({ length: 5 }, () => keys.refetch()))
  t.equal(new Set([...sets, await keys.refetch()]).size, 1)
  t.equal(provider.requests.length, 2)

  const failing = await start(t, { cooldownMs: 3_600_000 })
  failing.provider.responses[discovery] = (_request, response) => { response.writeHead(500).end() }
  for (let calls = 0; calls < 5; calls++) {
    await t.rejects(failing.keys.refetch(), { name: 'KEYS_UNAVAILABLE' })
  }
  t.equal(failing.provider.requests.length, 1)
})

t.test('fetches are repeated after failures and successes, and the log has the changes only', async (t) => {
  const { provider, keys, log } = await start(t, { retryMs: 1, refreshMs: 1 })
  await provider.stop()
  keys.refresh()
  for (let failures = 0; failures < 6; failures++) t.equal(await nextFetch(), 'failed')
  t.equal(keys.current(), undefined)
  await provider.restart()
  while (await nextFetch() === 'failed');
  t.ok(keys.current())
  for (let successes = 0; successes < 3; successes++) t.equal(await nextFetch(), 'succeeded')
  matchEach(t, log, [
    { level: 40, msg: fetchFailed, err: { message: /ECONNREFUSED/ } },
    { level: 30, msg: 'the keys of the identity provider are fetched' }
  ])
})

t.test('old keys stay in use while the provider fails, for a limited time', async (t) => {
  const { provider, keys } = await start(t)
  const set = await keys.refetch()
  await provider.stop()
  await t.rejects(keys.refetch(), { name: 'KEYS_UNAVAILABLE' })
  t.equal(keys.current(), set)
  const now = performance.now()
  const intercepted = t.intercept(performance, 'now', { value: () => now + 24 * 3_600_000 + 1 })
  t.equal(keys.current(), undefined)
  intercepted.restore()
  await provider.restart()
  t.equal(await keys.refetch(), set)
})

type Responses = Awaited<ReturnType<typeof startKeyServer>>['responses'][string]

const respond = (body: string, status = 200, headers = {}): Responses =>
  (_request, response) => { response.writeHead(status, headers).end(body) }

const begin = (part: string): Responses => (_request, response) => { response.write(part) }

const faults: Record<string, [path: string, respond: Responses, reason: RegExp]> = {
  'another issuer': [
    discovery, respond('{"issuer":"https://id.example","jwks_uri":"https://id.example/keys"}'),
    /openid-configuration names the issuer "https:\/\/id\.example"$/
  ],
  'keys over plain HTTP': [discovery, (request, response) => {
    const issuer = `http://${request.headers.host}`
    response.end(JSON.stringify({ issuer, jwks_uri: 'http://192.0.2.1/keys' }))
  }, /names no secure URL of keys$/],
  'an error status': ['/keys', respond('{"keys":[]}', 503), /\/keys responded with status 503$/],
  'an empty response': ['/keys', respond('', 204), /JSON/],
  'no keys': ['/keys', respond('{"keys":[]}'), /the provider publishes no keys for signatures$/],
  'only keys for encryption':
    ['/keys', respond('{"keys":[{"kty":"EC","use":"enc"}]}'), /no keys for signatures$/],
  'JSON without keys': ['/keys', respond('{"keys":{}}'), /Key Set malformed/],
  'a redirect': ['/keys', respond('', 302, { location: '/other-keys' }), /unexpected redirect/],
  'a large response without an end':
    ['/keys', begin(' '.repeat(262_145)), /\/keys responded with more than 262144 bytes$/],
  'half a response': ['/keys', begin('{"keys":['), /timeout/]
}

t.test('after a wrong response old keys stay, and the provider is asked again', async (t) => {
  const { provider, keys, log, times } = await start(t)
  const set = await keys.refetch()
  for (const [name, [path, respond, reason]] of Object.entries(faults)) {
    const good = provider.responses[path] as Responses
    provider.responses[path] = respond
    times.timeoutMs = reason.source === 'timeout' ? 50 : 5000
    const error = await keys.refetch().then(() => undefined, (error) => error)
    t.match(error, { name: 'KEYS_UNAVAILABLE', status: 503 }, name)
    t.match([error?.cause.message, error?.cause.cause?.message].join(' ').trim(), reason)
    t.match(log.at(-1), { level: 40, msg: fetchFailed })
    t.equal(keys.current(), set)
    provider.responses[path] = good
    times.timeoutMs = 5000
    t.equal(await keys.refetch(), set)
  }
  t.notOk(provider.requests.includes('/other-keys'), 'no redirect is followed')
})

t.test('closing ends a fetch and starts no other one', async (t) => {
  const { provider, keys, log } = await start(t, { retryMs: 1, refreshMs: 1 })
  const asked = Promise.withResolvers<void>()
  provider.responses[discovery] = () => asked.resolve()
  const pending = keys.refetch()
  await asked.promise
  keys.close()
  t.equal(await pending, undefined)
  t.strictSame(log, [])
  t.equal(provider.requests.length, 1)
})
