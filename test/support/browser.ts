// A page of a real browser, the one that the runner has found.
import { chromium, type LaunchOptions, type Page } from 'playwright-core'
import type { Test } from 'tap'

/** What tells a browser from the others on the machine. */
export type Browser = Pick<LaunchOptions, 'executablePath' | 'channel' | 'env'>

interface PageOptions {
  home: string
  colorScheme?: 'light' | 'dark'
  viewport?: { width: number, height: number }
}

const found = process.env.TEST_BROWSER

/** For the tests that open a page: without a browser they are left out, unless it is CI that runs them. */
export const needsBrowser = { skip: found === undefined && !process.env.CI && 'there is no browser' }

export const launch = ({ env, ...browser }: Browser) => chromium.launch({
  ...browser,
  env: { ...process.env, ...env },
  // Root, as in most containers, cannot have Chromium's sandbox; the rest keeps Chromium itself off the network.
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync']
})

/** The one browser of a test file: launched for its first page, and closed when the file ends. */
export function browserOf (file: Test) {
  let browser: ReturnType<typeof launch> | undefined
  file.teardown(async () => (await browser)?.close())

  /** A page with a profile of its own, and what went wrong or out of the way on it so far. */
  return async function openPage (t: Test, { home, ...options }: PageOptions) {
    if (found === undefined) throw new Error('There is no browser; the first lines of this run tell why.')
    browser ??= launch(JSON.parse(found))
    const page: Page = await (await browser).newPage(options)
    page.setDefaultTimeout(10_000)
    t.teardown(() => page.close())
    const complaints: string[] = []
    page.on('console', (message) => { if (/warning|error/.test(message.type())) complaints.push(`${message.type()}: ${message.text()}`) })
    page.on('pageerror', (error) => { complaints.push(error.message) })
    // The requests are sent by this process: Chromium cuts its own connections
    // whenever a network interface comes or goes, with every container on the machine.
    await page.route('**', async (route) => {
      if (route.request().url().startsWith(`${home}/`)) return route.fulfill({ response: await route.fetch({ maxRedirects: 0 }) })
      complaints.push(`requested ${route.request().url()}`)
      await route.abort()
    })
    return { page, complaints }
  }
}
