// Checks openapi.json with a linter, a generator of clients and a proxy.
import { execFile, spawn } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { promisify } from 'node:util'
import t from 'tap'
import { startApp } from '../../support/app.ts'
import { sql } from '../../support/database.ts'
import { freePort } from '../../support/free-port.ts'
import { hasEnded } from '../../support/processes.ts'
import { withoutHooks } from '../../support/program.ts'

const run = promisify(execFile)
const packages = join(import.meta.dirname, '../node_modules')
const { as, listen, url } = await startApp(t)
const address = await listen()

const runPackage = (name: string, ...args: string[]) => run('env',
  [...withoutHooks, 'REDOCLY_SUPPRESS_UPDATE_NOTICE=true', join(packages, '.bin', name), ...args])
  .catch(({ stdout, stderr }) => { throw new Error(stdout + stderr) })

const use = `
  import createClient from 'openapi-fetch'
  import type { components, paths } from './generated.ts'

  export async function use (baseUrl: string, authorization: string) {
    const client = createClient<paths>({ baseUrl, headers: { authorization } })
    const body: components['schemas']['NewPlant'] = { id: 42, name: 'Fern' }
    const created = await client.POST('/plants', { body })
    const listed = await client.GET('/plants', { params: { query: { limit: 1 } } })
    const deleted = await client.DELETE('/plants/{id}', { params: { path: { id: 42 } } })
    const again = await client.DELETE('/plants/{id}', { params: { path: { id: 42 } } })
    return [created.response.status, listed.data, deleted.response.status, again.error?.error]
  }`

t.test('Redocly finds no problem, and a client of openapi-typescript compiles and works', async (t) => {
  await t.resolves(runPackage('redocly', 'lint', 'openapi.json', '--config', 'lint/redocly.yaml'))
  const folder = t.testdir({ node_modules: t.fixture('symlink', packages), 'use.ts': use })
  const file = join(folder, 'use.ts')
  await runPackage('openapi-typescript', 'openapi.json', '--output', join(folder, 'generated.ts'))
  await t.resolves(runPackage('tsc', '--ignoreConfig', '--noEmit', '--strict', '--target', 'es2024',
    '--module', 'nodenext', '--allowImportingTsExtensions', '--skipLibCheck', file))
  const client = await import(file)
  const { authorization } = await as('carol')
  t.same(await client.use(address, authorization), [200, [{ name: 'Fern' }], 204, 40402])
})

// Prism is a proxy that lists violations of openapi.json in a header of the response. Prism reads numbers as
// doubles, so ids beyond 2^53 are not among these requests.
t.test('Prism finds no violation in valid requests and their responses', async (t) => {
  const dora = (await as('dora')).authorization
  const reader = (await as('dora', { readOnly: true })).authorization
  const port = String(await freePort())
  const prism = `http://127.0.0.1:${port}`
  const command = [join(packages, '.bin/prism'), 'proxy', 'openapi.json', address, '--port', port]
  const child = spawn('env', [...withoutHooks, ...command], { stdio: ['ignore', 'ignore', 'inherit'] })
  t.teardown(() => { child.kill() })
  while (!await fetch(prism).then(() => true, () => hasEnded(child))) await setTimeout(50)

  async function call (outcome: number, method: string, path: string, body?: string, authorization = dora) {
    const headers = { authorization, ...body !== undefined && { 'content-type': 'application/json' } }
    const response = await fetch(`${prism}${path}`, { method, headers, body })
    const text = await response.text()
    t.equal(outcome > 1000 ? JSON.parse(text).error : response.status, outcome, `${method} ${path} ${body}`)
    t.equal(response.headers.get('sl-violations'), null, `${method} ${path} ${body}`)
  }
  await call(200, 'GET', '/plants')
  await call(200, 'POST', '/plants', '{"id":1,"name":"Monstera deliciosa","tag":"tropical"}')
  await call(200, 'POST', '/plants', '{"id":-9007199254740991,"name":"🌵 \\"é\\" \\\\ \\u0001","owner":"bob"}')
  await call(40014, 'POST', '/plants', '{"id":1,"name":""}')
  await call(40019, 'POST', '/plants', '{"id":1,"name":"Monstera deliciosa","tag":"tropical"}')
  await call(200, 'GET', '/plants?limit=1')
  await call(204, 'DELETE', '/plants/-9007199254740991')
  await call(40402, 'DELETE', '/plants/-9007199254740991')
  await call(40102, 'GET', '/plants', undefined, 'Bearer x')
  await call(40301, 'POST', '/plants', '{"id":5,"name":"n"}', reader)
  await sql(url, "insert into plants select 'dora', id, 'n', 'even' from generate_series(2, 5000) as id")
  await call(200, 'GET', '/plants')
  await sql(url, 'drop table plants')
  await call(50301, 'GET', '/plants')
})
