// Runs the samples of openapi.json and examples/. Checks openapi.json with a linter, a proxy and a generator.
import { execFile, spawn } from 'node:child_process'
import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { promisify } from 'node:util'
import t from 'tap'
import { startApp } from '../../support/app.ts'
import { sql } from '../../support/database.ts'
import { freePort } from '../../support/free-port.ts'
import { storePlants } from '../../support/plants.ts'
import { asShipped, withoutHooks } from '../../support/program.ts'

const run = promisify(execFile)
const packages = join(import.meta.dirname, '../node_modules')
const { app, as, listen, url } = await startApp(t)
const alice = await as('alice')
const address = await listen()
const env = { ...process.env, BASE: address, TOKEN: alice.authorization.replace('Bearer ', '') }
const { tags } = (await app.inject('/openapi.json')).json()
// Await this command before the first test. During an `await` between two tests, tap may end the file.
const hasPython = await run('python3', ['--version']).then(() => true, () => false)

/** Returns the samples in a section of the document. */
function codeOf (section: string, language: string): string {
  const { description } = tags.find(({ name }: { name: string }) => name === section)
  return description.match(new RegExp(`(?<=\`\`\`${language}\n).*?(?=\`\`\`)`, 'gs')).join('')
}

/** Runs a sample in this folder, so that Node can resolve the imports of the sample. */
async function script (code: string, environment = env) {
  const file = join(import.meta.dirname, `sample-${process.pid}.mts`)
  await writeFile(file, code)
  return run('env', [...asShipped, process.execPath, file], { env: environment }).finally(() => rm(file))
}

const runPackage = (name: string, ...args: string[]) => run('env',
  [...withoutHooks, 'REDOCLY_SUPPRESS_UPDATE_NOTICE=true', join(packages, '.bin', name), ...args])
  .catch(({ stdout, stderr }) => { throw new Error(stdout + stderr) })

const ts = codeOf('Quick start', 'ts')

t.afterEach(() => alice.delete('42'))

t.test('the curl sample and the TypeScript sample create, list and delete a plant', async (t) => {
  const { stdout } = await run('sh', ['-c', codeOf('Quick start', 'sh')], { env })
  t.equal(stdout, '{"name":"Fern"}[{"name":"Fern"}]')
  t.equal((await script(ts)).stdout, "{ name: 'Fern' }\n[ { name: 'Fern' } ]\n204\n")
})

t.test('the Python sample creates, lists and deletes a plant, or fails', { skip: !hasPython }, async (t) => {
  const python = ['-c', codeOf('Quick start', 'python')]
  t.equal((await run('python3', python, { env })).stdout, '{"name":"Fern"}\n[{"name":"Fern"}]\n')
  t.same((await alice.list()).json(), [])
  await alice.create({ id: 42, name: 'Ivy' })
  await t.rejects(run('python3', python, { env }), { code: 1, stderr: /"error":40014/ })
})

t.test('each sample of pages reads all plants, page by page', async (t) => {
  const { authorization } = await as('bob')
  const names = Array.from({ length: 45 }, (_, id) => `plant ${id}`)
  await storePlants(url, 'bob', names.map((name, id) => ({ id: BigInt(id), name })))
  const bob = { ...env, TOKEN: authorization.replace('Bearer ', '') }
  const section = 'All plants, page by page'
  const pages = (await run('sh', ['-c', codeOf(section, 'sh')], { env: bob, cwd: t.testdir() })).stdout
  const each = pages.replaceAll('][', ']\n[').split('\n').map((page) => JSON.parse(page))
  t.strictSame(each.map(({ length }) => length), [20, 20, 5])
  t.strictSame(each.flat().map(({ name }) => name), names)
  t.equal((await script(codeOf(section, 'ts'), bob)).stdout, names.join('\n') + '\n')
  await t.rejects(script(codeOf(section, 'ts'), { ...env, TOKEN: 'x' }), /40102/)
})

t.test('createForSure retries a create and rejects a taken id', async (t) => {
  // `cut` makes the first `fetch` throw after the service has responded.
  const cut = 'let calls = 0; const real = fetch; globalThis.fetch = async (...args) => { const response = ' +
    'await real(...args); if (calls++ === 0) throw new Error(); return response }\n'
  const code = cut + ts.split('console.log')[0] + codeOf('Retries', 'ts')
  const creates = ['Fern', 'Ivy'].map((name) => `await createForSure({ id: 42, name: '${name}' })\n`)
  await t.rejects(script(code + creates.join('')), /You already have a plant with this id/)
  t.same((await alice.list()).json(), [{ name: 'Fern' }])
})

t.test('the openapi-fetch sample sends large ids exactly', async (t) => {
  const [created = '', deleted = ''] = codeOf('Ids', 'ts').split('await client.DELETE')
  await script(created)
  t.equal((await alice.delete('9007199254740992')).statusCode, 404)
  t.same((await alice.list()).json(), [{ name: 'Fern' }])
  await script(`${created.replace(/await client.POST.*\n/, '')}await client.DELETE${deleted}`)
  t.same((await alice.list()).json(), [])
})

t.test('examples/plants.ts and the requests of examples/plants.http succeed', async (t) => {
  t.equal((await run('env', [...asShipped, process.execPath, 'examples/plants.ts'], { env })).stdout, [
    "created { name: 'Monstera deliciosa', tag: 'tropical' }",
    "yours [ { name: 'Monstera deliciosa', tag: 'tropical' } ]",
    'left []\n'
  ].join('\n'))
  const file = await readFile('examples/plants.http', 'utf8')
  const requests = file.replaceAll('{{base}}', address).replaceAll('{{token}}', env.TOKEN).split(/^###.*\n/m)
  const statuses: number[] = []
  for (const request of requests.slice(1)) {
    const [, method, url = '', lines = '', body] =
      /^(\S+) (\S+)\n(.*?)(?:\n\n(.*))?$/s.exec(request.trim()) ?? []
    const headers = lines.split('\n').map((line) => line.split(': ') as [string, string])
    statuses.push((await fetch(url, { method, body, headers })).status)
  }
  t.same(statuses, [200, 200, 204])
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
  while (!await fetch(prism).then(() => true, () => false)) await setTimeout(50)

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
