// Runs tap on a temporary PostgreSQL server: node test/run.ts [arguments for tap]
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { rm } from 'node:fs/promises'
import { installPackages } from '../dev/packages.ts'
import { endLeftovers } from './support/processes.ts'
import { createFolder, createTemplate, startServer } from './support/test-server.ts'

const args = process.argv.slice(2)
const runs = (folder: string) => args.join().includes(folder)
if (runs('test/system/')) installPackages('test/system')

// If a process still uses the folder after the tests, the run fails.
const folder = await createFolder()
const server = await startServer(folder)
// Ctrl-C signals tap and this process. Ignore SIGINT here: the server must run until tap has stopped.
process.on('SIGINT', () => {})
try {
  await createTemplate(server)
  // Only these tests need a browser. The import needs packages that other runs may not have installed.
  const browser = runs('test/system/clients/')
    ? await import('./system/clients/chromium.ts').then(({ findBrowser }) => findBrowser()).catch(warn)
    : undefined
  const env = { ...process.env, TEST_DATABASE_URL: server.url, TEST_BROWSER: JSON.stringify(browser) }
  const [code] = await once(spawn('tap', args, { stdio: 'inherit', env }), 'exit')
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

function warn ({ message }: Error): void {
  console.log(`# NO BROWSER: tests of pages are skipped, and fail when CI is set\n${message}`)
}
