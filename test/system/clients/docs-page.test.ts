// Tests the page at /docs in a real browser.
import { once } from 'node:events'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Page } from 'playwright-core'
import t, { type Test } from 'tap'
import { findViolations } from '../../support/accessibility.ts'
import { startApp } from '../../support/app.ts'
import { browserOf, needsBrowser } from '../../support/browser.ts'

const openPage = browserOf(t)

const openDocs = async (page: Page, home: string) => {
  await page.goto(`${home}/docs`)
  await page.getByRole('heading', { name: 'Plant store' }).waitFor()
}

/** Scrolls to every section, because the page renders a section only when the section becomes visible. */
async function renderAll (page: Page): Promise<void> {
  const renderNext = `new Promise((resolve) => {
    const section = document.querySelector('[data-placeholder=true]')
    section?.scrollIntoView()
    requestAnimationFrame(() => setTimeout(resolve, 0, section !== null))
  })`
  while (await page.evaluate(renderNext));
  await page.locator('.markdown pre button').last().waitFor()
}

/** Returns the essential elements that are not visible without scrolling. */
async function findHidden (page: Page, home: string, height: number): Promise<string[]> {
  const essentials = [
    page.getByRole('heading', { name: 'Plant store' }), page.getByText(home, { exact: true }),
    page.getByPlaceholder('Token'), page.getByRole('heading', { name: 'Create a plant' }),
    ...['Shell', 'Python', 'TypeScript'].map((name) => page.getByRole('tab', { name }))
  ]
  const boxes = await Promise.all(essentials.map((element) => element.first().boundingBox()))
  const isHidden = boxes.map((box) => box === null || box.y + box.height >= height)
  return essentials.filter((_, index) => isHidden[index]).map(String)
}

const screens = [[[1280], 900, 'light'], [[390, 320], 844, 'dark']] as const
for (const [[width, ...narrower], height, colorScheme] of screens) {
  const sizes = [width, ...narrower].join(' and ')
  t.test(`the page fits ${sizes} px and meets WCAG AA in ${colorScheme} mode`, needsBrowser, async (t) => {
    const { listen } = await startApp(t)
    const home = await listen()
    const { page, complaints } = await openPage(t, { home, colorScheme, viewport: { width, height } })
    await openDocs(page, home)
    t.equal(await page.locator(`body.${colorScheme}-mode`).count(), 1)
    if (width === 1280) t.same(await findHidden(page, home, height), [])
    await renderAll(page)
    t.same(await findViolations(page), [])
    for (const fitted of [width, ...narrower]) {
      await page.setViewportSize({ width: fitted, height })
      t.equal(await page.evaluate('document.documentElement.scrollWidth'), fitted, 'no horizontal scrolling')
    }
    t.same(complaints, [], 'no console message, no violation of the policy, no foreign host')
  })
}

const samples: Array<[language: string, code: RegExp]> = [
  ['Python', /^import http\.client\n[^]*"POST",\n +"\/plants"/],
  ['TypeScript', /^fetch\('.*\/plants', \{\n +method: 'POST'/],
  ['Shell', /^curl http.*\/plants/]
]

t.test('tabs choose the language of the samples, and buttons copy them', needsBrowser, async (t) => {
  const { listen } = await startApp(t)
  const home = await listen()
  const { page } = await openPage(t, { home, viewport: { width: 1280, height: 900 } })
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
  async function copyBy (button: ReturnType<Page['locator']>): Promise<string> {
    await page.evaluate("navigator.clipboard.writeText('')")
    await button.click()
    for (;;) {
      const text = await page.evaluate('navigator.clipboard.readText()') as string
      if (text !== '') return text
    }
  }
  await openDocs(page, home)
  const operation = page.locator('section[id$="POST/plants"]')
  for (const [language, code] of samples) {
    await page.getByRole('tab', { name: language }).click()
    await operation.getByRole('button', { name: `Change code sample language: ${language}` }).waitFor()
    t.match(await copyBy(operation.getByRole('button', { name: /^Copy .* code$/ }).first()), code)
  }
  const quickStart = page.locator('.markdown pre', { hasText: 'urllib' }).first()
  const python = await copyBy(quickStart.getByRole('button', { name: 'Copy' }))
  t.match(python, /^import json, os\n[^]*call\('DELETE', '\/plants\/42'\)\n$/)
})

async function send (
  page: Page, operation: string,
  fill: (dialog: ReturnType<Page['locator']>) => Promise<unknown> = async () => {}
) {
  await page.getByRole('heading', { name: operation, exact: true }).scrollIntoViewIfNeeded()
  await page.locator('section', { has: page.getByRole('heading', { name: operation, exact: true }) }).last()
    .getByRole('button', { name: 'Test Request' }).click()
  const dialog = page.getByRole('dialog')
  await fill(dialog)
  const [response] = await Promise.all([
    page.waitForResponse((response) => new URL(response.url()).pathname.includes('/plants')),
    dialog.getByRole('button', { name: /^Send/ }).first().click()
  ])
  await dialog.getByText(`${response.status()} ${response.statusText()}`).first().waitFor()
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'hidden' })
  return response
}

t.test('the page creates, lists and deletes a plant and stores no token', needsBrowser, async (t) => {
  const { as, listen } = await startApp(t)
  const alice = await as('alice')
  const token = alice.authorization.replace('Bearer ', '')
  const home = await listen()
  const { page, complaints } = await openPage(t, { home, viewport: { width: 1280, height: 900 } })
  await openDocs(page, home)
  await page.getByPlaceholder('Token').fill(token)

  const created = await send(page, 'Create a plant', async (dialog) => {
    await dialog.locator('.cm-content[contenteditable=true]').last().fill(
      '{ "id": 9007199254740993, "name": "Monstera 🌿" }'
    )
  })
  t.equal(created.status(), 200)
  t.same(await (await send(page, 'List your plants')).json(), [{ name: 'Monstera 🌿' }])
  t.equal((await alice.delete('9007199254740993')).statusCode, 204, 'the id was sent exactly')

  await alice.create({ id: 42, name: 'Fern' })
  t.equal((await send(page, 'Delete a plant')).status(), 204)
  t.same((await alice.list()).json(), [])

  const stored =
    await page.evaluate('JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])')
  t.notMatch(stored, token)
  await page.reload()
  await page.getByRole('heading', { name: 'Plant store' }).waitFor()
  t.equal(await page.getByPlaceholder('Token').inputValue(), '', 'a reload forgets the token')
  t.same(complaints, [])
})

t.test('the keyboard alone reaches an operation and sends a request', needsBrowser, async (t) => {
  const { listen } = await startApp(t)
  const home = await listen()
  const { page } = await openPage(t, { home, viewport: { width: 1280, height: 900 } })
  await openDocs(page, home)
  const tabTo = async (text: RegExp) => {
    for (let i = 0; i < 80; i++) {
      await page.keyboard.press('Tab')
      if (text.test(await page.evaluate('document.activeElement.textContent') as string)) return
    }
    t.fail(`no element ${text} takes the focus`)
  }
  await tabTo(/^Create a plant/)
  t.ok(await page.evaluate('document.activeElement.matches(":focus-visible")'))
  await page.keyboard.press('Enter')
  await page.waitForURL(/POST\/plants/)
  await tabTo(/^\s*Test Request/)
  await page.keyboard.press('Enter')
  await page.getByRole('dialog').waitFor()
  const [response] = await Promise.all([
    page.waitForResponse(`${home}/plants`), page.keyboard.press('Control+Enter')
  ])
  t.equal(response.status(), 401)
})

/** Starts a proxy that forwards /api/… to the service without the prefix /api. */
async function startProxy (t: Test, service: string): Promise<string> {
  const proxy = createServer(async (incoming, response) => {
    const path = /^\/api(\/.*)$/.exec(incoming.url as string)?.[1]
    if (path === undefined) return response.writeHead(404).end()
    const { method, headers } = incoming
    const outgoing = request(service + path, { method, headers })
    incoming.pipe(outgoing)
    const [upstream] = await once(outgoing, 'response')
    response.writeHead(upstream.statusCode, upstream.headers)
    upstream.pipe(response)
  }).listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  t.teardown(() => { proxy.close(); proxy.closeAllConnections() })
  return `http://127.0.0.1:${(proxy.address() as AddressInfo).port}/api`
}

t.test('below the prefix of a proxy the document names the service there', async (t) => {
  const { as, listen } = await startApp(t)
  const home = await startProxy(t, await listen())
  const { authorization } = await as('alice')
  const document = `${home}/openapi.json`
  const { servers: [server] } = await (await fetch(document)).json() as { servers: Array<{ url: string }> }
  const service = new URL(server?.url as string, document)
  t.same(await (await fetch(new URL('plants', service), { headers: { authorization } })).json(), [])
})

t.test('the page works below the prefix of a proxy, with or without a slash', needsBrowser, async (t) => {
  const { listen } = await startApp(t)
  const home = await startProxy(t, await listen())
  const { page, complaints } = await openPage(t, { home, viewport: { width: 1280, height: 900 } })
  await page.goto(`${home}/docs/`)
  t.equal(page.url(), `${home}/docs`)
  t.equal((await send(page, 'List your plants')).status(), 401)
  t.match(complaints, [/401 \(Unauthorized\)/])
})
