import { existsSync } from 'node:fs'
import { chromium, type Page } from 'playwright-core'
import type { Test } from 'tap'

const places = ['/usr/bin/chromium', '/usr/bin/google-chrome']

/** A page of a headless Chromium with a profile of its own, and what went wrong or out of the way on it so far. */
export async function openPage (t: Test, { home, ...options }: { home: string, colorScheme?: 'light' | 'dark', viewport?: { width: number, height: number } }) {
  const executablePath = places.find((place) => existsSync(place))
  if (executablePath === undefined) throw new Error('This test drives a real browser: install Chromium (apt-get install chromium)')
  const browser = await chromium.launch({
    executablePath,
    // Root, as in most containers, cannot have Chromium's sandbox; the rest keeps Chromium itself off the network.
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync']
  })
  t.teardown(() => browser.close())
  const page: Page = await browser.newPage(options)
  page.setDefaultTimeout(10_000)
  const complaints: string[] = []
  page.on('console', (message) => { complaints.push(`${message.type()}: ${message.text()}`) })
  page.on('pageerror', (error) => { complaints.push(error.message) })
  // The requests are sent by this process: Chromium cuts its own connections
  // whenever a network interface comes or goes, with every container on the machine.
  await page.route('**', async (route) => {
    if (route.request().url().startsWith(`${home}/`)) return route.fulfill({ response: await route.fetch() })
    complaints.push(`requested ${route.request().url()}`)
    await route.abort()
  })
  return { page, complaints }
}
