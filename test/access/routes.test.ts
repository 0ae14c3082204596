import { subscribe } from 'node:diagnostics_channel'
import type { FastifyInstance, HTTPMethods } from 'fastify'
import t from 'tap'
import { createToken } from '../../src/access/token-format.ts'
import { startApp } from '../support/app.ts'
import { guardedRoutes, openRoutes } from '../support/routes.ts'

// Fastify announces every instance, so that routes can be seen being registered on the app as it is.
const routes: Array<{ method: HTTPMethods, url: string }> = []
subscribe('fastify.initialization', (message) => {
  const { fastify } = message as { fastify: FastifyInstance }
  fastify.addHook('onRoute', ({ method, url }) => {
    for (const one of [method].flat()) routes.push({ method: one as HTTPMethods, url })
  })
})

const { app } = await startApp(t)

// What docs/api.md says is open to all.
const isOpen = (url: string) => ['/', '/livez', '/readyz', '/openapi.json'].includes(url) || /^\/docs(\/|$)/.test(url)
const guarded = routes.filter(({ url }) => !isOpen(url))

const inOrder = (routes: Record<string, string[]>) => Object.entries(routes).map(([url, methods]) => [url, methods.toSorted()]).sort()

t.test('every operation is guarded, and nothing else needs to be', async (t) => {
  const methods: Record<string, string[]> = {}
  for (const { method, url } of routes) if (!url.startsWith('/docs')) (methods[url] ??= []).push(method)
  t.strictSame(inOrder(methods), inOrder({ ...guardedRoutes, ...openRoutes }), 'what is meant stands in test/support/routes.ts')
})

for (const { method, url } of guarded) {
  t.test(`${method} ${url} turns strangers away before it looks at anything they sent`, async (t) => {
    for (const authorization of ['', `Bearer ${createToken()}`]) {
      const answer = await app.inject({
        // A HEAD request is answered without a body, whose number would tell nothing.
        method,
        url: `${url.replace(/:\w+/, 'x')}?limit=none&limit=%zz`,
        headers: { ...authorization !== '' && { authorization }, ...method !== 'GET' && method !== 'HEAD' && { 'content-type': 'text/plain' } },
        ...method === 'POST' && { payload: '{' }
      })
      t.equal(answer.statusCode, 401)
      t.match(answer.headers['www-authenticate'], authorization === '' ? /^Bearer realm="plants"$/ : /error="invalid_token"$/)
      if (method !== 'HEAD') t.match(answer.json(), { error: authorization === '' ? 40101 : 40102 })
    }
  })
}

t.test('the documented others are open', async (t) => {
  for (const { method, url } of routes.filter(({ url }) => isOpen(url))) {
    const answer = await app.inject({ method, url: url.replace('*', 'json') })
    t.ok(answer.statusCode < 400, `${method} ${url}`)
  }
})
