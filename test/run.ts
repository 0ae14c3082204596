// Runs tap on a temporary PostgreSQL server: node test/run.ts [arguments for tap]
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { rm } from 'node:fs/promises'
import { installPackages } from '../dev/packages.ts'
import { endLeftovers } from './support/processes.ts'
import { createFolder, createTemplate, startServer } from './support/test-server.ts'

// Import the module only when its packages are installed.
const findBrowser = async () => (await import('./system/clients/chromium.ts')).findBrowser().catch(warn)

function warn ({ message }: Error): undefined {
  console.log(`# NO BROWSER: tests of pages are skipped, and fail when CI is set\n${message}`)
}

const tests = process.argv.slice(2).join()
if (tests.includes('test/system/')) installPackages('test/system')

// If a process still uses the folder after the tests, the run fails.
const folder = await createFolder()
const server = await startServer(folder)
// Ctrl-C signals tap and this process. Ignore SIGINT here: the server must run until tap has stopped.
process.on('SIGINT', () => {})
try {
  // Only test/system/clients/ needs a browser. Other runs skip the search, which takes a second.
  const [browser] = await Promise.all([
    tests.includes('test/system/clients/') ? findBrowser() : undefined,
    createTemplate(server)
  ])
  const tap = spawn('tap', process.argv.slice(2), {
    stdio: 'inherit',
    env: { ...process.env, TEST_DATABASE_URL: server.url, TEST_BROWSER: browser && JSON.stringify(browser) }
  })
  const [code] = await once(tap, 'exit')
  process.exitCode = code ?? 1
} finally {
  await server.close()
  const left = await endLeftovers(folder)
  if (left.length > 0) {
    console.log(`# STILL RUNNING after the tests:\n${left.join('\n')}`)
    process.exitCode = 1
  }
  await rm(folder, { recursive: true, maxRetries: 5 })
}
process.exit()
