import { once } from 'node:events'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { startApp } from '../support/app.ts'
import { browserOf, needsBrowser } from '../support/browser.ts'

const openPage = browserOf(t)

// Beyond what a number in JavaScript can hold.
const id = '9007199254740993'

t.test('the page, on a phone', needsBrowser, async (t) => {
  const { as, listen } = await startApp(t)
  const alice = await as('alice')
  const home = await listen()
  const { page, complaints } = await openPage(t, { home, colorScheme: 'dark', viewport: { width: 390, height: 844 } })
  await page.goto(`${home}/docs`)

  await t.test('it fits and follows the colour scheme', async (t) => {
    await page.locator('html.dark-mode').waitFor()
    await page.emulateMedia({ colorScheme: 'light' })
    await page.locator('html:not(.dark-mode)').waitFor()
    await page.locator('#operations-Plants-deletePlant .responses-wrapper').first().waitFor()
    t.equal(await page.evaluate('document.documentElement.scrollWidth'), 390, 'nothing to scroll sideways for')
  })

  await t.test('a plant can be created, listed and deleted', async (t) => {
    await page.getByRole('button', { name: 'Authorize' }).click()
    const dialog = page.locator('.modal-ux')
    await dialog.getByRole('textbox').fill(alice.authorization.replace('Bearer ', ''))
    await dialog.getByRole('button', { name: 'Apply credentials' }).click()
    await dialog.getByRole('button', { name: 'Close' }).last().click()

    const operation = (name: string) => page.locator(`#operations-Plants-${name}`)
    const execute = async (name: string) => {
      await operation(name).getByRole('button', { name: 'Execute' }).click()
      const answer = operation(name).locator('.live-responses-table tbody tr')
      return {
        status: await answer.locator('.response-col_status').innerText(),
        body: await answer.locator('.response-col_description').innerText()
      }
    }

    await operation('createPlant').locator('textarea').fill(`{ "id": ${id}, "name": "Monstera 🌿" }`)
    t.match(await execute('createPlant'), { status: '200', body: /"name": "Monstera 🌿"/ })

    t.match(await execute('listPlants'), { status: '200', body: /"name": "Monstera 🌿"/ })

    await operation('deletePlant').getByPlaceholder('id').fill(id)
    t.match(await execute('deletePlant'), { status: '204' })
    t.same((await alice.list()).json(), [])
  })

  t.same(complaints, [], 'no console message, and nothing asked of another host')
})

/** A proxy that knows the service under /api, and gives it the paths without. */
async function startProxy (t: Test, service: string): Promise<string> {
  const proxy = createServer(async (incoming, answer) => {
    const path = /^\/api(\/.*)$/.exec(incoming.url as string)?.[1]
    if (path === undefined) return answer.writeHead(404).end()
    const { method, headers } = incoming
    const outgoing = request(service + path, { method, headers })
    incoming.pipe(outgoing)
    const [given] = await once(outgoing, 'response')
    answer.writeHead(given.statusCode, given.headers)
    given.pipe(answer)
  }).listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  t.teardown(() => { proxy.close(); proxy.closeAllConnections() })
  return `http://127.0.0.1:${(proxy.address() as AddressInfo).port}/api`
}

t.test('under a prefix that a proxy gives, the document names the service there', async (t) => {
  const { as, listen } = await startApp(t)
  const home = await startProxy(t, await listen())
  const { authorization } = await as('alice')
  for (const document of [`${home}/openapi.json`, `${home}/docs/json`]) {
    const { servers: [server] } = await (await fetch(document)).json() as { servers: Array<{ url: string }> }
    const service = new URL(server?.url as string, document)
    t.same(await (await fetch(new URL('plants', service), { headers: { authorization } })).json(), [], document)
  }
})

t.test('under a prefix that a proxy gives, the page works', needsBrowser, async (t) => {
  const { listen } = await startApp(t)
  const home = await startProxy(t, await listen())
  for (const path of ['/docs', '/docs/']) {
    const { page, complaints } = await openPage(t, { home })
    await page.goto(home + path)
    const list = page.locator('#operations-Plants-listPlants')
    await list.getByRole('button', { name: 'Execute' }).click()
    const answer = list.locator('.live-responses-table tbody tr')
    t.equal(await answer.locator('.response-col_status').innerText(), '401')
    t.match(complaints, [/401 \(Unauthorized\)/], path)
  }
})

t.test('the page may run no script and no style but those served with it', async (t) => {
  const { app } = await startApp(t)
  const policy = String((await app.inject('/docs/static/index.html')).headers['content-security-policy'])
  for (const url of ['/docs', '/docs/static/swagger-ui-bundle.js', '/docs/static/logo.svg']) {
    t.equal((await app.inject(url)).headers['content-security-policy'], policy, url)
  }
  t.match(policy, /default-src 'none';.*script-src 'self';.*style-src 'self';/)
  t.notMatch(policy, /unsafe|http/)
})

t.test('what the page does not have is answered like anything that is not there', async (t) => {
  const { app, log } = await startApp(t)
  for (const url of ['/docs/nothing', '/docs/static/nothing', '/docs/static/../../package.json', '/docs/static/%2e%2e%2fpackage.json', '/docs/static/a%00b', '/docs/static/..%5c..%5cx']) {
    const answer = await app.inject(url)
    t.equal(answer.statusCode, 404, url)
    t.match(answer.json(), { error: 40401, message: 'There is nothing at this path.' }, url)
  }
  for (const headers of [{ range: 'bytes=999999999-' }, { 'if-match': '"x"' }]) {
    const answer = await app.inject({ url: '/docs/static/favicon-32x32.png', headers })
    t.strictSame([answer.statusCode, answer.json().error], [400, 40001])
  }
  t.same(log.map((line) => JSON.parse(line)).filter(({ level }) => /warn|error|fatal/.test(level)), [])
})

t.test('DOCS=off removes the page and leaves the document', async (t) => {
  const { app } = await startApp(t, { DOCS: 'off' })
  for (const url of ['/docs', '/docs/', '/docs/json', '/docs/static/swagger-ui.css']) {
    t.equal((await app.inject(url)).json().error, 40401, url)
  }
  t.equal((await app.inject('/openapi.json')).statusCode, 200)
})
