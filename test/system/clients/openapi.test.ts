// Checks openapi.json with tools for OpenAPI documents: a linter, a proxy and a generator of clients.
import { execFile, spawn } from 'node:child_process'
import { mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { sql } from '../../support/database.ts'
import { withoutHooks } from '../../support/program.ts'
import { openSamples } from './samples.ts'

const packages = join(import.meta.dirname, '../node_modules')
const binOf = (program: string) => join(packages, '.bin', program)
const { as, alice, codeOf, env: { BASE: address }, script, url } = await openSamples(t, import.meta.dirname)

t.test('Redocly finds no problem in the document', async (t) => {
  await t.resolves(promisify(execFile)('env',
    [...withoutHooks, 'REDOCLY_SUPPRESS_UPDATE_NOTICE=true', binOf('redocly'), 'lint', 'openapi.json']))
})

t.test('the openapi-fetch sample sends large ids exactly', async (t) => {
  const [lines = ''] = codeOf('Ids', 'ts')
  const [created = '', deleted = ''] = lines.split('await client.DELETE')
  await script(created)
  t.equal((await alice.delete('9007199254740992')).statusCode, 404)
  t.same((await alice.list()).json(), [{ name: 'Fern' }])
  await script(`${created.replace(/await client.POST.*\n/, '')}await client.DELETE${deleted}`)
  t.same((await alice.list()).json(), [])
})

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

t.test('a client with types of openapi-typescript compiles and works', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'plant-store-client-'))
  t.teardown(() => rm(folder, { recursive: true }))
  await writeFile(join(folder, 'package.json'), '{ "type": "module" }')
  await symlink(packages, join(folder, 'node_modules'))
  await writeFile(join(folder, 'use.ts'), use)
  const run = (command: string, ...args: string[]) =>
    promisify(execFile)('env', [...withoutHooks, binOf(command), ...args])
      .catch(({ stdout, stderr }) => { throw new Error(stdout + stderr) })
  await run('openapi-typescript', 'openapi.json', '--output', join(folder, 'generated.ts'))
  await t.resolves(run('tsc', '--ignoreConfig', '--noEmit', '--strict', '--target', 'es2024',
    '--module', 'nodenext', '--allowImportingTsExtensions', '--skipLibCheck', join(folder, 'use.ts')))
  const client = await import(join(folder, 'use.ts'))
  t.same(await client.use(address, (await as('bob')).authorization), [200, [{ name: 'Fern' }], 204, 40402])
})

/** Starts a proxy that lists violations of openapi.json in a header of the response. */
async function startPrism (t: Test): Promise<string> {
  const command = [binOf('prism'), 'proxy', 'openapi.json', address as string, '--port', '0']
  const prism = spawn('env', [...withoutHooks, ...command], { stdio: ['ignore', 'pipe', 'inherit'] })
  t.teardown(() => { prism.kill() })
  for await (const line of createInterface(prism.stdout)) {
    const [, url] = /listening on (http\S+)/.exec(line) ?? []
    if (url === undefined) continue
    prism.stdout.resume()
    return url
  }
  throw new Error(`Prism ended with ${prism.exitCode}`)
}

type Call = [outcome: number, method: string, path: string, body?: string, authorization?: string]

// Prism reads numbers as doubles, so ids beyond 2^53 are not among these requests.
t.test('Prism finds no violation in valid requests and their responses', async (t) => {
  const carol = (await as('carol')).authorization
  const reader = (await as('carol', { readOnly: true })).authorization
  const calls: Call[] = [
    [200, 'GET', '/plants'],
    [200, 'POST', '/plants', '{"id":1,"name":"Monstera deliciosa","tag":"tropical"}'],
    [200, 'POST', '/plants', '{"id":-9007199254740991,"name":"🌵 \\"é\\" \\\\ \\u0001","owner":"bob"}'],
    [40014, 'POST', '/plants', '{"id":1,"name":""}'],
    [200, 'GET', '/plants?limit=1'],
    [204, 'DELETE', '/plants/-9007199254740991'],
    [40402, 'DELETE', '/plants/-9007199254740991'],
    [40102, 'GET', '/plants', undefined, 'Bearer x'],
    [40301, 'POST', '/plants', '{"id":5,"name":"n"}', reader]
  ]
  const prism = await startPrism(t)

  async function call ([outcome, method, path, body, authorization = carol]: Call) {
    const headers = { authorization, ...body !== undefined && { 'content-type': 'application/json' } }
    const response = await fetch(`${prism}${path}`, { method, headers, body: body ?? null })
    const text = await response.text()
    t.equal(outcome > 1000 ? JSON.parse(text).error : response.status, outcome, `${method} ${path} ${body}`)
    t.equal(response.headers.get('sl-violations'), null, `${method} ${path} ${body}`)
  }

  for (const request of calls) await call(request)
  await sql(url, "insert into plants select 'carol', id, 'n', 'even' from generate_series(2, 5000) as id")
  await call([200, 'GET', '/plants'])
  await sql(url, 'drop table plants')
  await call([50301, 'GET', '/plants'])
})
