import { subscribe } from 'node:diagnostics_channel'
import type { FastifyInstance, HTTPMethods } from 'fastify'
import t from 'tap'
import { createToken } from '../../src/access/token-format.ts'
import { startApp } from '../support/app.ts'
import { guardedRoutes, openRoutes } from '../support/routes.ts'

// Records every route: the channel `fastify.initialization` delivers an app before the app has routes.
const routes: Array<{ method: HTTPMethods, url: string }> = []
subscribe('fastify.initialization', (message) => {
  const { fastify } = message as { fastify: FastifyInstance }
  fastify.addHook('onRoute', ({ method, url }) => {
    for (const one of [method].flat()) routes.push({ method: one as HTTPMethods, url })
  })
})

const { app } = await startApp(t)

// The routes that need no token, according to docs/api.md.
const isOpen = (url: string) =>
  ['/', '/livez', '/readyz', '/openapi.json'].includes(url) || /^\/docs(\/|$)/.test(url)
const guarded = routes.filter(({ url }) => !isOpen(url))

const inOrder = (routes: Record<string, string[]>) =>
  Object.entries(routes).map(([url, methods]) => [url, methods.toSorted()]).sort()

t.test('test/support/routes.ts lists exactly the routes of the app', async (t) => {
  const methods: Record<string, string[]> = {}
  for (const { method, url } of routes) if (!url.startsWith('/docs')) (methods[url] ??= []).push(method)
  t.strictSame(inOrder(methods), inOrder({ ...guardedRoutes, ...openRoutes }))
})

for (const { method, url } of guarded) {
  t.test(`${method} ${url} rejects an unauthenticated request before it validates any input`, async (t) => {
    for (const authorization of ['', `Bearer ${createToken()}`]) {
      const response = await app.inject({
        method,
        url: `${url.replace(/:\w+/, 'x')}?limit=none&limit=%zz`,
        headers: {
          ...authorization !== '' && { authorization },
          ...method !== 'GET' && method !== 'HEAD' && { 'content-type': 'text/plain' }
        },
        ...method === 'POST' && { payload: '{' }
      })
      t.equal(response.statusCode, 401)
      t.match(response.headers['www-authenticate'],
        authorization === '' ? /^Bearer realm="plants"$/ : /error="invalid_token"$/)
      if (method !== 'HEAD') t.match(response.json(), { error: authorization === '' ? 40101 : 40102 })
    }
  })
}

t.test('the routes that are documented as open need no token', async (t) => {
  for (const { method, url } of routes.filter(({ url }) => isOpen(url))) {
    const response = await app.inject({ method, url: url.replace('*', 'json') })
    t.ok(response.statusCode < 400, `${method} ${url}`)
  }
})
