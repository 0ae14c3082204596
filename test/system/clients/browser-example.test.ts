// Opens examples/browser/index.html in a real browser. The page and the service have different origins.
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { createServer, request, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Locator, Page } from 'playwright-core'
import t, { type Test } from 'tap'
import { findViolations } from '../../support/accessibility.ts'
import { startApp } from '../../support/app.ts'
import { browserOf, needsBrowser } from '../../support/browser.ts'
import { acceptingJwts } from '../../support/identity-provider.ts'
import { openProvider } from '../../support/sign-in-provider.ts'

const openPage = browserOf(t)
const html = await readFile('examples/browser/index.html')

async function listen (t: Test, handler: RequestListener): Promise<string> {
  const server = createServer(handler).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => { server.close(); server.closeAllConnections() })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

const home = await listen(t, (_request, response) => {
  response.setHeader('content-type', 'text/html; charset=utf-8').end(html)
})
const { as, listen: listenApp } = await startApp(t, { CORS_ORIGIN: home })
const service = await listenApp()

const tokenOf = ({ authorization }: { authorization: string }) => authorization.replace('Bearer ', '')

async function signIn (page: Page, token: string, address = service): Promise<void> {
  await page.goto(home)
  await page.getByLabel('Service', { exact: true }).fill(address)
  await page.getByLabel('Token').fill(token)
  await page.getByRole('button', { name: 'Use this token' }).click()
}

async function tabTo (target: Locator): Promise<void> {
  const page = target.page()
  for (let pressed = 0; pressed < 15; pressed++) {
    if (await target.and(page.locator(':focus')).count() > 0) return
    await page.keyboard.press('Tab')
  }
  throw new Error(`the Tab key does not reach ${target}`)
}

async function type (target: Locator, text: string): Promise<void> {
  await tabTo(target)
  await target.page().keyboard.press('Control+A')
  await target.page().keyboard.type(text)
}

const names = (page: Page) => page.locator('#list li span:first-child').allTextContents()
const says = (page: Page, text: string | RegExp) => page.locator('#messages').getByText(text).waitFor()

const screens = [[1280, 900, 'light'], [390, 844, 'dark'], [320, 640, 'light']] as const
t.test('the page fits each screen and meets WCAG AA', needsBrowser, async (t) => {
  const user = await as('screens')
  const texts = ['Monstera deliciosa', 'x'.repeat(200), '<img src=x onerror=alert(1)>']
  for (const [id, name] of texts.entries()) {
    await user.create({ id, name, tag: 'tropical' })
  }
  for (const [width, height, colorScheme] of screens) {
    const { page, complaints } = await openPage(t, { colorScheme, viewport: { width, height } })
    const check = async (state: string) => {
      const title = `${width} px, ${colorScheme}, ${state}`
      t.same(await findViolations(page), [], title)
      t.equal(await page.evaluate('document.documentElement.scrollWidth'), width, `${title}: no scrolling`)
    }
    await page.goto(home)
    await page.getByText('Sign in at your company instead').click()
    await check('before')
    await signIn(page, tokenOf(user))
    await says(page, 'You are signed in.')
    await check('after')
    t.same(complaints, [])
  }
})

t.test('the keyboard alone signs in, creates, deletes and signs out', needsBrowser, async (t) => {
  const alice = await as('alice')
  const { page, complaints } = await openPage(t, {})
  await page.goto(home)
  const [create, remove] = [page.locator('#create-form'), page.locator('#delete-form')]
  await type(page.getByLabel('Service', { exact: true }), service)
  await type(page.getByLabel('Token'), tokenOf(alice))
  await page.keyboard.press('Enter')
  await says(page, 'You are signed in.')
  t.equal(await page.evaluate('document.activeElement.textContent'), 'Your plants')
  await page.getByText('You have no plants yet').waitFor()

  await type(create.getByLabel('Id'), '9007199254740993')
  await type(create.getByLabel('Name'), 'Monstera')
  await type(create.getByLabel('Tag'), 'tropical')
  await tabTo(create.getByRole('button'))
  await page.keyboard.press('Space')
  await says(page, 'Plant 9007199254740993 is stored.')
  await page.getByText('1 in all').waitFor()
  t.same(await names(page), ['Monstera'])
  t.equal(await create.getByLabel('Id').inputValue(), '9007199254740994', 'the next id')
  t.equal((await alice.delete('9007199254740992')).statusCode, 404, 'the id is exact')

  await tabTo(remove.getByLabel('Id'))
  t.equal(await remove.getByLabel('Id').inputValue(), '9007199254740993')
  await page.keyboard.press('Enter')
  await says(page, 'Plant 9007199254740993 is deleted.')
  await page.getByText('You have no plants yet').waitFor()
  t.same(await names(page), [])

  await tabTo(page.getByRole('button', { name: 'Sign out' }))
  await page.keyboard.press('Enter')
  await says(page, 'You are signed out.')
  t.equal(await page.evaluate('document.activeElement.name'), 'token')
  t.equal(await page.getByLabel('Token').inputValue(), '')
  t.same(complaints, [])
  const stored =
    await page.evaluate('JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])')
  t.notMatch(stored, tokenOf(alice))
})

const withoutLinks = (t: Test) => listen(t, async (incoming, response) => {
  const { method, url, headers } = incoming
  const outgoing = request(service + url, { method, headers })
  incoming.pipe(outgoing)
  const [upstream] = await once(outgoing, 'response')
  delete upstream.headers.link
  response.writeHead(upstream.statusCode, upstream.headers)
  upstream.pipe(response)
})

t.test('"Load more" shows every plant once, with Link headers and without', needsBrowser, async (t) => {
  const user = await as('collector')
  const all = Array.from({ length: 45 }, (_, id) => `plant ${id}`)
  for (const [id, name] of all.entries()) await user.create({ id, name })
  for (const address of [service, await withoutLinks(t)]) {
    const { page } = await openPage(t, {})
    await signIn(page, tokenOf(user), address)
    await page.getByText('20 shown').waitFor()
    const more = page.getByRole('button', { name: 'Load more' })
    await more.click()
    await page.getByText('40 shown').waitFor()
    t.equal(await page.evaluate('document.activeElement.textContent'), 'plant 20', 'the focus goes on')
    await more.click()
    await page.getByText('45 in all').waitFor()
    t.same(await names(page), all)
    t.notOk(await more.isVisible())
  }
})

t.test('errors are shown in words', needsBrowser, async (t) => {
  const { as, listen, tokens } = await startApp(t, { CORS_ORIGIN: home, USER_RATE: '1/m', USER_BURST: '5' })
  const bob = await as('bob')
  const { page } = await openPage(t, {})
  const address = await listen()
  await signIn(page, 'plant_1', address)
  await says(page, 'The bearer token is not valid. Sign in again. (Error 40102)')
  await signIn(page, tokenOf(bob), address)
  await says(page, 'You are signed in.')
  const [create, remove] = [page.locator('#create-form'), page.locator('#delete-form')]
  for (const id of ['1.5', '1e3', '9223372036854775808', 'one']) {
    await remove.getByLabel('Id').fill(id)
    await remove.getByRole('button').click()
    await says(page, 'An id is a whole number from -9223372036854775808 to 9223372036854775807.')
  }
  await remove.getByLabel('Id').fill(' 007 ')
  await remove.getByRole('button').click()
  await says(page, 'You have no plant with this id. (Error 40402)')
  const store = async (id: string) => {
    await create.getByLabel('Id').fill(id)
    await create.getByLabel('Name').fill('Fern')
    await create.getByRole('button').click()
  }
  await store('-9223372036854775808')
  await says(page, 'Plant -9223372036854775808 is stored.')
  await store('-9223372036854775808')
  await says(page, 'You already have a plant with this id. (Error 40014)')
  await store('2')
  await says(page, /^You have sent too many requests\. Try again in \d+ seconds\. /)
  await tokens.revoke({ user: 'bob' })
})

t.test('a page of an origin that is not listed can neither read nor write', needsBrowser, async (t) => {
  const { as, listen } = await startApp(t, { CORS_ORIGIN: 'https://other.example' })
  const carol = await as('carol')
  await carol.create({ id: 1, name: 'Monstera' })
  const address = await listen()
  const { page } = await openPage(t, {})
  await signIn(page, tokenOf(carol), address)
  await says(page, `No response from ${address}/. Either it does not run, or its setting CORS_ORIGIN ` +
    `does not contain ${home}.`)
  for (const [path, init] of [
    ['/livez', {}],
    ['/plants', { headers: { authorization: carol.authorization } }],
    ['/plants/1', { method: 'DELETE', headers: { authorization: carol.authorization } }]
  ] as const) {
    const outcome = await page.evaluate(
      `fetch('${address}${path}', ${JSON.stringify(init)}).then(() => 'read', (error) => error.message)`)
    t.equal(outcome, 'Failed to fetch', path)
  }
  t.same((await carol.list()).json(), [{ name: 'Monstera' }])
})

t.test('a user signs in at a provider with PKCE, by the keyboard alone', needsBrowser, async (t) => {
  const issuer = await openProvider(t, `${home}/`)
  const { as, listen } = await startApp(t, { CORS_ORIGIN: home, ...acceptingJwts(issuer) })
  const service = await listen()
  const dave = await as(`${issuer}|dave`)
  await dave.create({ id: 1, name: 'Monstera' })
  const { page, complaints } = await openPage(t, {})
  await page.goto(`${home}/?${new URLSearchParams({ issuer, client_id: 'browser' })}`)
  await type(page.getByLabel('Service', { exact: true }), service)
  await tabTo(page.getByRole('button', { name: 'Sign in', exact: true }))
  await page.keyboard.press('Enter')
  await says(page, 'You are signed in.')
  t.same(await names(page), ['Monstera'])
  t.equal(page.url(), `${home}/`, 'the address does not keep the code')
  t.equal(await page.evaluate('sessionStorage.length'), 0)
  t.same(complaints, [])

  await page.goto(`${home}/?code=stolen&state=foreign`)
  await says(page, 'This page did not start this sign-in. Please sign in again.')
  await page.goto(`${home}/?${new URLSearchParams({ issuer, client_id: 'browser' })}`)
  await page.getByLabel('Audience').fill('https://unknown.example')
  await page.getByRole('button', { name: 'Sign in', exact: true }).click()
  await says(page, /^The provider says: /)
  await page.getByLabel('Issuer').fill(`${issuer}/`)
  await page.getByRole('button', { name: 'Sign in', exact: true }).click()
  await says(page, `The provider calls itself ${issuer}: enter this issuer.`)
})
