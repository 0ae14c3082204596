import t from 'tap'
import { startApp } from '../support/app.ts'

const urls = ['/docs', '/docs/docs.css', '/docs/docs.js', '/docs/scalar.js']

t.test('the policy forbids inline scripts, eval and other hosts', async (t) => {
  const { app } = await startApp(t)
  for (const url of urls) {
    const policy = String((await app.inject(url)).headers['content-security-policy'])
    t.match(policy, /default-src 'none'; script-src 'self'; .*connect-src 'self'/, url)
    t.notMatch(policy, /unsafe-eval|http/)
  }
})

t.test('the page responds to GET and HEAD only', async (t) => {
  const { app } = await startApp(t)
  for (const url of urls) {
    const { headers: { 'x-request-id': _id, date: _date, ...headers } } = await app.inject(url)
    t.match(await app.inject({ method: 'HEAD', url }), { statusCode: 200, body: '', headers }, url)
    const post = await app.inject({ method: 'POST', url })
    t.match(post, { statusCode: 405, headers: { allow: 'GET, HEAD' } }, url)
  }
})

t.test('an unknown path below /docs gets the usual 404', async (t) => {
  const { app } = await startApp(t)
  for (const url of [
    '/docs/nothing', '/docs/../package.json', '/docs/%2e%2e%2fpackage.json', '/docs/docs-page.ts',
    '/docs/a%00b', '/docs/..%5cx'
  ]) {
    const response = await app.inject(url)
    t.equal(response.statusCode, 404, url)
    t.match(response.json(), { error: 40401, message: 'There is nothing at this path.' }, url)
  }
})

t.test('DOCS=off removes the page and keeps the document', async (t) => {
  const { app } = await startApp(t, { DOCS: 'off' })
  for (const url of [...urls, '/docs/']) t.equal((await app.inject(url)).json().error, 40401, url)
  t.equal((await app.inject('/openapi.json')).statusCode, 200)
})
