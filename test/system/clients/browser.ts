// Opens pages in the browser that test/run.ts has found.
import { readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { chromium, type BrowserContextOptions, type LaunchOptions, type Page } from 'playwright-core'
import type { Test } from 'tap'

export type Browser = Pick<LaunchOptions, 'executablePath' | 'channel' | 'env'>

const found = process.env.TEST_BROWSER

/** Skips a test when there is no browser. In CI the test fails instead. */
export const needsBrowser = { skip: found === undefined && !process.env.CI && 'there is no browser' }

export const launch = ({ env, ...browser }: Browser) => chromium.launch({
  ...browser,
  env: { ...process.env, ...env },
  // Chromium's sandbox does not work for root, the user in most containers. The last three flags turn off
  // requests that Chromium itself sends, such as update checks.
  args: [
    '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'
  ]
})

/** Returns a function that opens pages. The first call starts the browser. */
export function browserOf (file: Test) {
  let browser: ReturnType<typeof launch> | undefined
  file.teardown(async () => (await browser)?.close())

  /**
   * `complaints` has the page's warnings and errors. With `home`, the page's URL of the service, the test
   * process sends the page's requests to `service`, and complains of other requests.
   */
  return async function openPage (
    t: Test, options: BrowserContextOptions = {}, home?: string, service = home && new URL(home).origin
  ) {
    if (found === undefined) throw new Error('There is no browser; the first lines of this run tell why.')
    browser ??= launch(JSON.parse(found))
    const page = await (await browser).newPage(options)
    // Beside other tests on a busy machine, the first load of /docs takes much more than ten seconds.
    page.setDefaultTimeout(120_000)
    t.teardown(() => page.close())
    const complaints: string[] = []
    page.on('console', (message) => {
      if (/warning|error/.test(message.type())) complaints.push(`${message.type()}: ${message.text()}`)
    })
    page.on('pageerror', (error) => { complaints.push(error.message) })
    if (home === undefined) return { page, complaints }
    // Chromium cuts its connections whenever a container on the machine starts or ends. So the test process
    // sends the page's requests. An uncaught error of this handler ends the process.
    await page.route('**', async (route) => {
      try {
        const url = route.request().url()
        if (!url.startsWith(`${home}/`)) throw new Error(`requested ${url}`)
        const response = await route.fetch({ url: url.replace(home, service as string), maxRedirects: 0 })
        await route.fulfill({ response })
      } catch (error) {
        complaints.push((error as Error).message)
        await route.abort().catch(() => {})
      }
    })
    return { page, complaints }
  }
}

export const screens = [[1280, 900, 'light'], [320, 640, 'dark']] as const

export const widthOf = (page: Page) => page.evaluate('document.documentElement.scrollWidth')

export const readStores = (page: Page) =>
  page.evaluate('JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])')

/** Returns the page's violations of WCAG 2.2, levels A and AA. */
export async function findViolations (page: Page): Promise<string[]> {
  const axe = await readFile(fileURLToPath(import.meta.resolve('axe-core/axe.min.js')), 'utf8')
  const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']
  await page.evaluate(axe)
  const { violations } = await page.evaluate(`axe.run(document, { runOnly: ${JSON.stringify(tags)} })`) as
    { violations: Array<{ id: string, nodes: Array<{ html: string, any: Array<{ message: string }> }> }> }
  return violations.flatMap(({ id, nodes }) =>
    nodes.map(({ html, any }) => `${id}: ${any[0]?.message} ${html}`))
}
