import { execFile } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { promisify } from 'node:util'
import { join } from 'node:path'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { storePlants } from '../support/plants.ts'
import { asShipped } from '../support/program.ts'

const run = promisify(execFile)
const { app, as, listen, url } = await startApp(t)
const alice = await as('alice')
const env = { ...process.env, BASE: await listen(), TOKEN: alice.authorization.replace('Bearer ', '') }
// Await this command before the first test. During an `await` between two tests, tap may end the file.
const hasPython = await run('python3', ['--version']).then(() => true, () => false)
const { tags } = (await app.inject('/openapi.json')).json()

const codeOf = (section: string, language: string): string[] =>
  [...tags.find(({ name }: { name: string }) => name === section).description.matchAll(
    new RegExp(`\`\`\`${language}\n(.*?)\`\`\``, 'gs')
  )].map(([, code]) => code)

const [sh = '', python = '', ts = ''] = ['sh', 'python', 'ts'].map((language) =>
  codeOf('Quick start', language).join(''))
// Runs code from a file inside the project, so that Node can resolve the code's imports.
const script = async (code: string, environment = env) => {
  const file = join(import.meta.dirname, `quick-start-${process.pid}.mts`)
  t.teardown(() => import('node:fs/promises').then(({ rm }) => rm(file, { force: true })))
  await writeFile(file, code)
  return run('env', [...asShipped, process.execPath, file], { env: environment })
}

t.afterEach(async () => { for (const id of ['42', '9007199254740993']) await alice.delete(id) })

t.test('the curl sample creates, lists and deletes a plant', async (t) => {
  t.equal((await run('sh', ['-c', sh], { env })).stdout, '{"name":"Fern"}[{"name":"Fern"}]')
})

const needsPython = { skip: !hasPython && 'no python3' }
t.test('the Python sample creates, lists and deletes a plant', needsPython, async (t) => {
  t.equal((await run('python3', ['-c', python], { env })).stdout, '{"name":"Fern"}\n[{"name":"Fern"}]\n')
  t.same((await alice.list()).json(), [])
})

t.test('the Python sample ends with the error number of a rejected request', needsPython, async (t) => {
  await alice.create({ id: 42, name: 'Ivy' })
  await t.rejects(run('python3', ['-c', python], { env }), { code: 1, stderr: /"error":40014/ })
})

t.test('the TypeScript sample creates, lists and deletes a plant', async (t) => {
  t.equal((await script(ts)).stdout, "{ name: 'Fern' }\n[ { name: 'Fern' } ]\n204\n")
})

t.test('each sample of pages reads all plants, page by page', async (t) => {
  const { authorization } = await as('bob')
  const names = Array.from({ length: 45 }, (_, id) => `plant ${id}`)
  await storePlants(url, 'bob', names.map((name, id) => ({ id: BigInt(id), name })))
  const bob = { ...env, TOKEN: authorization.replace('Bearer ', '') }
  const [sh, python, ts] =
    ['sh', 'python', 'ts'].map((language) => codeOf('All plants, page by page', language).join('')) as
      [string, string, string]
  const folder = t.testdir()
  const pages = (await run('sh', ['-c', sh], { env: bob, cwd: folder })).stdout
  const each = pages.replaceAll('][', ']\n[').split('\n').map((page) => JSON.parse(page))
  t.strictSame(each.map(({ length }) => length), [20, 20, 5])
  t.strictSame(each.flat().map(({ name }) => name), names)
  t.equal((await script(ts, bob)).stdout, names.join('\n') + '\n')
  if (hasPython) t.equal((await run('python3', ['-c', python], { env: bob })).stdout, names.join('\n') + '\n')
  await t.rejects(script(ts, { ...env, TOKEN: 'x' }), /40102/)
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

t.test('createForSure retries a create and rejects a taken id', async (t) => {
  const [rule = ''] = codeOf('Retries', 'ts')
  const call = ts.split('console.log')[0]
  await script(`${call}${rule}await createForSure({ id: 42, name: 'Fern' })`)
  t.same((await alice.list()).json(), [{ name: 'Fern' }])
  await t.rejects(script(`${call}${rule}await createForSure({ id: 42, name: 'Ivy' })`),
    /You already have a plant with this id/)
  // `cut` makes the first `fetch` throw after the service has responded.
  const cut = 'let calls = 0; const real = fetch; globalThis.fetch = async (...args) => { const response = ' +
    'await real(...args); if (calls++ === 0) throw new Error(); return response }\n'
  await alice.delete('42')
  await script(`${cut}${call}${rule}await createForSure({ id: 42, name: 'Fern' })`)
  t.same((await alice.list()).json(), [{ name: 'Fern' }])
})
