// Opens pages in the real browser that the test runner found.
import { chromium, type LaunchOptions, type Page } from 'playwright-core'
import type { Test } from 'tap'

/** Identifies one of the browsers on the machine. */
export type Browser = Pick<LaunchOptions, 'executablePath' | 'channel' | 'env'>

interface PageOptions {
  /** The service's URL. If set, the test process, not the browser, sends the page's requests. */
  home?: string
  colorScheme?: 'light' | 'dark'
  viewport?: { width: number, height: number }
}

const found = process.env.TEST_BROWSER

/** Skips a test when there is no browser. In CI the test fails instead. */
export const needsBrowser = { skip: found === undefined && !process.env.CI && 'there is no browser' }

export const launch = ({ env, ...browser }: Browser) => chromium.launch({
  ...browser,
  env: { ...process.env, ...env },
  // Chromium's sandbox does not work for root, the user in most containers. Most other flags keep
  // Chromium from sending requests of its own.
  args: [
    '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'
  ]
})

/** Returns a function that opens pages. The first page starts the browser, the end of the file closes it. */
export function browserOf (file: Test) {
  let browser: ReturnType<typeof launch> | undefined
  file.teardown(async () => (await browser)?.close())

  /** Opens a page with its own profile. `complaints` lists warnings, errors and requests to other origins. */
  return async function openPage (t: Test, { home, ...options }: PageOptions) {
    if (found === undefined) throw new Error('There is no browser; the first lines of this run tell why.')
    browser ??= launch(JSON.parse(found))
    const page: Page = await (await browser).newPage(options)
    page.setDefaultTimeout(10_000)
    t.teardown(() => page.close())
    const complaints: string[] = []
    page.on('console', (message) => {
      const type = message.type()
      if (/warning|error/.test(type)) complaints.push(`${type}: ${message.text()}`)
    })
    page.on('pageerror', (error) => { complaints.push(error.message) })
    if (home === undefined) return { page, complaints }
    // The test process sends the requests, because Chromium would cut its own connections
    // whenever a container on the machine starts or ends.
    await page.route('**', async (route) => {
      if (route.request().url().startsWith(`${home}/`)) {
        return route.fulfill({ response: await route.fetch({ maxRedirects: 0 }) })
      }
      complaints.push(`requested ${route.request().url()}`)
      await route.abort()
    })
    return { page, complaints }
  }
}
