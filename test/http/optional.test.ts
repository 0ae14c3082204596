import { registerHooks } from 'node:module'
import t from 'tap'

// The hook sees only later imports, so the app is imported below.
const loaded: string[] = []
registerHooks({
  load (url, context, next) {
    loaded.push(url)
    return next(url, context)
  }
})
const { startApp } = await import('../support/app.ts')
const isLoaded = (name: string) => loaded.some((url) => url.endsWith(`/src/${name}.ts`))

t.test('rate limits and CORS are loaded only when they are on', async (t) => {
  const { app } = await startApp(t)
  t.ok(isLoaded('app'))
  const optional = ['access/rate-limits', 'scheduling/token-buckets', 'http/cors']
  for (const name of optional) t.notOk(isLoaded(name), name)
  t.equal((await app.inject('/livez')).headers.vary, undefined)
  await startApp(t, { CORS_ORIGIN: 'https://app.example.com' })
  t.ok(isLoaded('http/cors'))
  t.notOk(isLoaded('access/rate-limits'))
  await startApp(t, { FAILED_AUTH_RATE: '1/s' })
  t.ok(isLoaded('access/rate-limits'))
  t.ok(isLoaded('scheduling/token-buckets'))
})
