// Opens the page at /docs in a real browser.
import type { Page } from 'playwright-core'
import t from 'tap'
import { startApp } from '../../support/app.ts'
import { browserOf, findViolations, needsBrowser, readStores, screens, widthOf } from './browser.ts'

const openPage = browserOf(t)
const { as, listen } = await startApp(t)
const service = await listen()

/** Scrolls /docs to a section that is not rendered. The page renders a section when it becomes visible. */
const renderNext = `new Promise((resolve) => {
  const section = document.querySelector('[data-placeholder=true]')
  section?.scrollIntoView()
  requestAnimationFrame(() => setTimeout(resolve, 0, section !== null))
})`

async function renderAll (page: Page): Promise<void> {
  await page.locator('#app h1').waitFor()
  while (await page.evaluate(renderNext));
  await page.getByRole('button', { name: 'Copy: Retries, TypeScript' }).waitFor()
}

/** Lists what a reader of the rendered page cannot read. */
const findUnreadable = `(() => {
  const partsOf = (element) => {
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT)
    const parts = []
    for (let text = texts.nextNode(); text !== null; text = texts.nextNode()) {
      const range = document.createRange()
      range.selectNodeContents(text)
      parts.push(range)
    }
    return parts
  }
  const all = (selector) => [...document.querySelectorAll(selector)]
  return [
    ...all('.markdown td:nth-child(2)').flatMap(partsOf).filter((part) => part.getClientRects().length > 1)
      .map((part) => 'breaks inside a word: ' + part),
    ...all('.markdown td, .scalar-card pre, .scalar-card pre *').filter((element) =>
        partsOf(element).some((part) => part.getBoundingClientRect().right >
          element.closest('td, .scalar-card').getBoundingClientRect().right))
      .map((element) => 'is cut: ' + element.textContent),
    ...all('.tab-list').filter((list) => list.scrollWidth > list.clientWidth)
      .map((list) => 'is cut: ' + list.textContent),
    ...all('.markdown pre button').filter((button) => button.getBoundingClientRect().bottom >
        partsOf(button.previousElementSibling)[0].getBoundingClientRect().top)
      .map((button) => 'is covered: ' + button.previousElementSibling.textContent)
  ]
})()`

t.test('/docs fits each screen, hides no text and meets WCAG AA', needsBrowser, async (t) => {
  for (const [width, height, colorScheme] of [...screens, [390, 844, 'light']] as const) {
    const { page, complaints } = await openPage(t, { colorScheme, viewport: { width, height } }, service)
    await page.goto(`${service}/docs`)
    const start = page.getByRole('button', { name: 'Copy: Plant store' })
    await page.locator('#app h1').waitFor()
    const box = await start.boundingBox()
    t.ok(width < 390 || (box !== null && box.y + 200 < height), 'the first screen has a request to copy')
    await renderAll(page)
    t.equal(await page.locator(`body.${colorScheme}-mode`).count(), 1)
    t.same(await findViolations(page), [])
    t.same(await page.evaluate(findUnreadable), [])
    t.equal(await widthOf(page), width, 'no horizontal scrolling')
    t.same(complaints, [], 'no console message, no violation of the policy, no foreign host')
  }
})

t.test('/docs has its first screen without the script of the reference', needsBrowser, async (t) => {
  for (const [width, height, colorScheme] of screens) {
    const { page } = await openPage(t, { colorScheme, viewport: { width, height } }, service)
    await page.route('**/scalar.js', (route) => route.abort())
    await page.goto(`${service}/docs`)
    await page.getByText('The rest of the reference could not be loaded. Reload the page.').waitFor()
    await page.getByRole('heading', { name: 'Plant store' }).waitFor()
    t.strictSame(await page.getByRole('listitem').allTextContents(),
      ['POST /plants Create a plant', 'GET /plants List your plants', 'DELETE /plants/{id} Delete a plant'])
    t.equal(await page.getByRole('link').getAttribute('href'), 'openapi.json')
    t.equal(await page.getByText('export BASE=').textContent(), `export BASE=${service} TOKEN=plant_…`)
    t.same(await findViolations(page), [])
    t.equal(await widthOf(page), width, 'no horizontal scrolling')
  }
})

t.test('each sample of /docs can be copied over plain HTTP, too', needsBrowser, async (t) => {
  // Browsers trust localhost as they trust https. Other names have no `navigator.clipboard`.
  const plain = 'http://plants.test'
  const { page, complaints } = await openPage(t, { viewport: { width: 1280, height: 900 } }, plain, service)
  await page.goto(`${plain}/docs`)
  t.notOk(await page.evaluate('isSecureContext'))
  await renderAll(page)
  await page.evaluate("document.body.append(document.createElement('textarea'))")
  const paste = async () => {
    await page.locator('body > textarea').fill('')
    await page.keyboard.press('Control+V')
    return page.locator('body > textarea').inputValue()
  }
  const buttons = page.locator('.markdown pre').getByRole('button')
  const names: Array<string | null> = []
  for (const button of await buttons.all()) {
    const name = await button.getAttribute('aria-label')
    const code = await button.locator('xpath=preceding-sibling::code').textContent()
    await button.click()
    t.equal(await button.textContent(), 'Copied')
    t.equal(await page.getByRole('status').textContent(), name?.replace('Copy', 'Copied'))
    t.equal(await paste(), code)
    names.push(name)
  }
  t.equal(new Set(names).size, 10, names.join())
  await page.getByRole('button', { name: 'Copy cURL code' }).first().click()
  t.match(await paste(), /^curl http:\/\/plants\.test\/plants \\/)
  t.same(complaints, [])
})

/** Sends a request from /docs. */
async function send (page: Page, operation: string, body?: string) {
  const heading = page.getByRole('heading', { name: operation, exact: true })
  await heading.scrollIntoViewIfNeeded()
  await page.locator('section', { has: heading }).last().getByRole('button', { name: 'Test Request' }).click()
  const dialog = page.getByRole('dialog')
  if (body !== undefined) await dialog.locator('.cm-content[contenteditable=true]').last().fill(body)
  const [response] = await Promise.all([
    page.waitForResponse((response) => new URL(response.url()).pathname.includes('/plants')),
    dialog.getByRole('button', { name: /^Send/ }).first().click()
  ])
  await dialog.getByText(`${response.status()} ${response.statusText()}`).first().waitFor()
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'hidden' })
  return response
}

t.test('/docs works below a proxy\'s prefix, on a phone, and stores no token', needsBrowser, async (t) => {
  const prefixed = `${service}/api`
  const erin = await as('erin')
  const token = erin.authorization.replace('Bearer ', '')
  const { page, complaints } = await openPage(t, { viewport: { width: 390, height: 844 } }, prefixed)
  await page.goto(`${prefixed}/docs`)
  await page.getByPlaceholder('Token').fill(token)
  await send(page, 'Create a plant', '{ "id": 9007199254740993, "name": "Monstera 🌿" }')
  t.same(await (await send(page, 'List your plants')).json(), [{ name: 'Monstera 🌿' }])
  t.equal((await erin.delete('9007199254740993')).statusCode, 204, 'the id was sent exactly')
  await erin.create({ id: 42, name: 'Fern' })
  t.equal((await send(page, 'Delete a plant')).status(), 204)
  t.notMatch(await readStores(page), token)
  await page.reload()
  t.equal(await page.getByPlaceholder('Token').inputValue(), '', 'a reload forgets the token')
  t.same(complaints, [])
})
