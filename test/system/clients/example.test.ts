// Opens examples/browser/index.html in a real browser. The example and the service have different origins.
import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { text } from 'node:stream/consumers'
import type { Locator, Page } from 'playwright-core'
import t from 'tap'
import { startApp } from '../../support/app.ts'
import { acceptingJwts, startKeyServer, startServer } from '../../support/identity-provider.ts'
import { browserOf, findViolations, needsBrowser, readStores, screens, widthOf } from './browser.ts'

const openPage = browserOf(t)
const html = await readFile('examples/browser/index.html')
const { issuer: home } = await startServer(t, (_request, response) => {
  response.setHeader('content-type', 'text/html; charset=utf-8').end(html)
})
const { as, listen } = await startApp(t, { CORS_ORIGIN: home })
const service = await listen()

const tokenOf = ({ authorization }: { authorization: string }) => authorization.replace('Bearer ', '')
const names = (page: Page) => page.locator('#list li span:first-child').allTextContents()
const says = (page: Page, text: string | RegExp) => page.locator('#messages').getByText(text).waitFor()

async function tabTo (target: Locator) {
  const { keyboard } = target.page()
  while (await target.and(target.page().locator(':focus')).count() === 0) await keyboard.press('Tab')
  return keyboard
}

async function type (target: Locator, text: string): Promise<void> {
  const keyboard = await tabTo(target)
  await keyboard.press('Control+A')
  await keyboard.type(text)
}

async function signIn (page: Page, token: string, address = service): Promise<void> {
  await page.goto(home)
  await type(page.getByLabel('Service', { exact: true }), address)
  await type(page.getByLabel('Token'), token)
  await page.keyboard.press('Enter')
}

t.test('the example shows all plants, fits each screen and meets WCAG AA', needsBrowser, async (t) => {
  const user = await as('screens')
  const all = Array.from({ length: 24 }, (_, id) => `<img src=x onerror=alert(${id})>`)
  await user.create({ id: -1, name: 'x'.repeat(200), tag: 'tropical' })
  for (const [id, name] of all.entries()) await user.create({ id, name })
  for (const [width, height, colorScheme] of screens) {
    const { page, complaints } = await openPage(t, { colorScheme, viewport: { width, height } })
    await signIn(page, tokenOf(user))
    await says(page, 'You are signed in.')
    t.same(await findViolations(page), [])
    t.equal(await widthOf(page), width, 'no horizontal scrolling')
    await page.getByText('20 shown').waitFor()
    await page.getByRole('button', { name: 'Load more' }).click()
    await page.getByText('25 in all').waitFor()
    t.same(await names(page), ['x'.repeat(200), ...all])
    t.same(complaints, [])
  }
})

t.test('the example works with the keyboard alone', needsBrowser, async (t) => {
  const alice = await as('alice')
  const { page, complaints } = await openPage(t)
  const [create, remove] = [page.locator('#create-form'), page.locator('#delete-form')]
  await signIn(page, tokenOf(alice))
  await says(page, 'You are signed in.')
  await type(create.getByLabel('Id'), '9007199254740993')
  await type(create.getByLabel('Name'), 'Monstera')
  await (await tabTo(create.getByRole('button'))).press('Space')
  await says(page, 'Plant 9007199254740993 is stored.')
  t.same(await names(page), ['Monstera'])
  t.equal((await alice.delete('9007199254740992')).statusCode, 404, 'the id is exact')
  await (await tabTo(remove.getByLabel('Id'))).press('Enter')
  await says(page, 'Plant 9007199254740993 is deleted.')
  await page.getByText('You have no plants yet').waitFor()
  await (await tabTo(page.getByRole('button', { name: 'Sign out' }))).press('Enter')
  await says(page, 'You are signed out.')
  t.equal(await page.getByLabel('Token').inputValue(), '')
  t.notMatch(await readStores(page), tokenOf(alice))
  t.same(complaints, [])
})

t.test('a page may send headers of tools, and a delete with an empty body', needsBrowser, async (t) => {
  const fred = await as('fred')
  await fred.create({ id: 1, name: 'Monstera' })
  const { page } = await openPage(t)
  await page.goto(home)
  const headers = {
    authorization: fred.authorization,
    baggage: 'a=b',
    'sentry-trace': '1-2',
    tracestate: 'a=1',
    'x-requested-with': 'XMLHttpRequest'
  }
  const status = (path: string, options: object) =>
    page.evaluate(`fetch(${JSON.stringify(service + path)}, ${JSON.stringify({ headers, ...options })})
      .then(({ status }) => status)`)
  t.equal(await status('/plants', {}), 200)
  t.equal(await status('/plants/1', { method: 'DELETE', body: '' }), 204)
})

t.test('the example shows errors in words', needsBrowser, async (t) => {
  const { as, listen } = await startApp(t, { CORS_ORIGIN: home, USER_RATE: '1/m', USER_BURST: '3' })
  const { page } = await openPage(t)
  const address = await listen()
  await signIn(page, 'plant_1', address)
  await says(page, 'The bearer token is not valid. Sign in again. (Error 40102)')
  await signIn(page, tokenOf(await as('bob')), address)
  await says(page, 'You are signed in.')
  const remove = async (id: string) => {
    await page.locator('#delete-form').getByLabel('Id').fill(id)
    await page.locator('#delete-form').getByRole('button').click()
  }
  await remove('1.5')
  await says(page, 'An id is a whole number from -9223372036854775808 to 9223372036854775807.')
  await remove(' 007 ')
  await says(page, 'You have no plant with this id. (Error 40402)')
  await remove('8')
  await remove('9')
  await says(page, /^You have sent too many requests\. Try again in \d+ seconds\. /)
  const elsewhere = await (await startApp(t, { CORS_ORIGIN: 'https://other.example' })).listen()
  await signIn(page, 'plant_1', elsewhere)
  await says(page, `No response from ${elsewhere}/. Either it does not run, or its setting CORS_ORIGIN ` +
    `does not contain ${home}.`)
})

t.test('in the example, a user signs in at a provider with PKCE', needsBrowser, async (t) => {
  const { issuer, responses, sign } = await startKeyServer(t)
  let asked = new URLSearchParams()
  const endpoints = { authorization_endpoint: `${issuer}/authorize`, token_endpoint: `${issuer}/token` }
  const metadata = JSON.stringify({ issuer, jwks_uri: `${issuer}/keys`, ...endpoints })
  responses['/.well-known/openid-configuration'] = (_request, response) =>
    response.setHeader('access-control-allow-origin', '*').end(metadata)
  const own = { client_id: 'browser', redirect_uri: `${home}/` }
  responses['/token'] = async (request, response) => {
    const sent = Object.fromEntries(new URLSearchParams(await text(request)))
    const challenge = createHash('sha256').update(sent.code_verifier ?? '').digest('base64url')
    t.equal(challenge, asked.get('code_challenge'))
    t.match(sent, { ...own, grant_type: 'authorization_code', code: 'the-code' })
    response.setHeader('access-control-allow-origin', '*')
      .end(JSON.stringify({ access_token: await sign({ sub: 'dave' }) }))
  }
  const { as, listen } = await startApp(t, { CORS_ORIGIN: home, ...acceptingJwts(issuer) })
  await (await as(`${issuer}|dave`)).create({ id: 1, name: 'Monstera' })
  const { page, complaints } = await openPage(t)
  await page.route(`${issuer}/authorize?*`, async (route) => {
    asked = new URL(route.request().url()).searchParams
    const location = `${home}/?${new URLSearchParams({ code: 'the-code', state: asked.get('state') ?? '' })}`
    await route.fulfill({ status: 303, headers: { location } })
  })
  await page.goto(`${home}/?${new URLSearchParams({ issuer, client_id: 'browser' })}`)
  await page.getByLabel('Service', { exact: true }).fill(await listen())
  await page.getByRole('button', { name: 'Sign in', exact: true }).click()
  await says(page, 'You are signed in.')
  const scope = 'openid plants:read plants:write'
  t.match(Object.fromEntries(asked), { ...own, response_type: 'code', scope, code_challenge_method: 'S256' })
  t.same(await names(page), ['Monstera'])
  t.equal(page.url(), `${home}/`, 'the address does not keep the code')
  t.equal(await page.evaluate('sessionStorage.length'), 0)
  t.same(complaints, [])
  await page.goto(`${home}/?code=stolen&state=foreign`)
  await says(page, 'This page did not start this sign-in. Please sign in again.')
})
