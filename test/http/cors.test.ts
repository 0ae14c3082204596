import t from 'tap'
import { startApp } from '../support/app.ts'
import { isError } from '../support/error-response.ts'
import { examplePaths } from '../support/routes.ts'

const [app1, app2, other] = ['https://app.example.com', 'http://localhost:5173', 'https://other.example']
const { app, as } = await startApp(t, { CORS_ORIGIN: `${app1}, ${app2}`, USER_RATE: '1/m' })
const { authorization } = await as('alice')

const exposed = 'WWW-Authenticate, Retry-After, RateLimit, Link, X-Request-Id'
const corsHeaders = (headers: Record<string, unknown>) =>
  Object.fromEntries(Object.entries(headers).filter(([name]) => /^(access-control-|vary$)/.test(name)))

t.test('pages of listed origins may read every response, others none', async (t) => {
  const requests = {
    '/plants': [200, 429, 429],
    '/livez': [200, 200, 200],
    '/nowhere': [404, 404, 404],
    '/plants?limit=x': [429, 429, 429]
  }
  for (const [url, statuses] of Object.entries(requests)) {
    for (const [index, origin] of [app1, app2, other].entries()) {
      const response = await app.inject({ url, headers: { authorization, origin } })
      t.equal(response.statusCode, statuses[index])
      const allowed = { 'access-control-allow-origin': origin, 'access-control-expose-headers': exposed }
      t.same(corsHeaders(response.headers), { vary: 'origin', ...origin !== other && allowed }, origin)
    }
    const unasked = await app.inject({ url, headers: { authorization } })
    t.same(corsHeaders(unasked.headers), { vary: 'origin' }, 'no origin')
  }
  const unauthenticated = await app.inject({ url: '/plants', headers: { origin: app1 } })
  t.match(unauthenticated, { statusCode: 401, headers: { 'access-control-allow-origin': app1 } })
})

t.test('other values of Vary stay', async (t) => {
  t.equal((await app.inject('/')).headers.vary, 'accept, origin')
  t.equal((await app.inject('/docs')).headers.vary, 'accept-encoding, origin')
})

t.test('a preflight request of a listed origin gets the methods of its path', async (t) => {
  for (const [url, methods] of Object.entries(examplePaths)) {
    const response = await app.inject({
      method: 'OPTIONS', url, headers: { origin: app1, 'access-control-request-method': 'DELETE' }
    })
    t.equal(response.statusCode, 204)
    t.equal(response.body, '')
    t.same(corsHeaders(response.headers), {
      'access-control-allow-origin': app1,
      'access-control-allow-methods': methods,
      'access-control-allow-headers': 'authorization, content-type, traceparent',
      'access-control-max-age': '7200',
      'access-control-expose-headers': exposed,
      vary: 'origin'
    }, url)
    t.match(response.headers, { 'cache-control': 'no-store', 'x-request-id': String })
  }
})

t.test('every other OPTIONS request gets the errors that it always gets', async (t) => {
  const wrongMethod = [40501, 'This path does not support this method.'] as const
  const method = { 'access-control-request-method': 'POST' }
  const cases: Array<[headers: Record<string, string>, title: string]> = [
    [{}, 'bare'], [{ origin: app1 }, 'without a method'], [method, 'without an origin'],
    [{ origin: other, ...method }, 'another origin'], [{ origin: 'null', ...method }, 'no origin'],
    [{ origin: `${app1}.evil.example`, ...method }, 'a longer origin']
  ]
  for (const [headers, title] of cases) {
    const response = await app.inject({ method: 'OPTIONS', url: '/plants', headers })
    isError(t, response, ...wrongMethod, title)
    t.equal(response.headers.allow, 'GET, HEAD, POST')
    t.equal(response.headers.vary, 'origin')
    t.notHas(response.headers, 'access-control-allow-methods')
  }
  const preflight = { origin: app1, ...method }
  isError(t, await app.inject({ method: 'OPTIONS', url: '/nowhere', headers: preflight }),
    40401, 'There is nothing at this path.')
  isError(t, await app.inject({ method: 'PUT', url: '/plants', headers: preflight }), ...wrongMethod)
})
