import { registerHooks } from 'node:module'
import t from 'tap'

// Registers a load hook before the app is imported, because the hook does not see earlier imports.
const loaded: string[] = []
registerHooks({
  load (url, context, next) {
    loaded.push(url)
    return next(url, context)
  }
})
const { startApp } = await import('./support/app.ts')
const isLoaded = (name: string) => loaded.some((url) => url.includes(`/node_modules/${name}/`))

t.test('metrics, traces and JWTs are loaded only when they are on', async (t) => {
  await startApp(t)
  t.ok(isLoaded('fastify'))
  t.notOk(isLoaded('@prometheus-io'))
  t.notOk(isLoaded('@opentelemetry'))
  t.notOk(isLoaded('jose'))
  t.notOk(loaded.some((url) => /src\/telemetry\/(.*metrics|traces)\.ts/.test(url)))
  t.notOk(loaded.some((url) => /src\/access\/(jwt(-keys|-rejections)?|resource-metadata)\.ts/.test(url)))
  await startApp(t, { METRICS_PORT: '0' })
  t.ok(isLoaded('@prometheus-io'))
  await startApp(t, { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1' })
  t.ok(isLoaded('@opentelemetry'))
  t.notOk(isLoaded('jose'))
  await startApp(t, { JWT_ISSUER: 'http://127.0.0.1:1', JWT_AUDIENCE: 'plants' })
  t.ok(isLoaded('jose'))
})

t.test('rate limits and CORS are loaded only when they are on', async (t) => {
  const isPartLoaded = (name: string) => loaded.some((url) => url.endsWith(`/src/${name}.ts`))
  const { app } = await startApp(t)
  for (const name of ['access/rate-limits', 'scheduling/token-buckets', 'http/cors']) {
    t.notOk(isPartLoaded(name), name)
  }
  t.equal((await app.inject('/livez')).headers.vary, undefined)
  await startApp(t, { CORS_ORIGIN: 'https://app.example.com' })
  t.ok(isPartLoaded('http/cors'))
  t.notOk(isPartLoaded('access/rate-limits'))
  await startApp(t, { FAILED_AUTH_RATE: '1/s' })
  t.ok(isPartLoaded('access/rate-limits'))
  t.ok(isPartLoaded('scheduling/token-buckets'))
})
