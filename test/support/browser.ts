// Opens pages in the browser that test/run.ts has found.
import { chromium, type LaunchOptions, type Page } from 'playwright-core'
import type { Test } from 'tap'

export type Browser = Pick<LaunchOptions, 'executablePath' | 'channel' | 'env'>

interface PageOptions {
  /** The service's URL. If set, the test process sends the page's requests in place of the browser. */
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

  /** `complaints` has the page's warnings and errors and, if `home` is set, requests to other origins. */
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
    // Chromium cuts its connections whenever a container on the machine starts or ends. So the test process
    // sends the page's requests.
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
