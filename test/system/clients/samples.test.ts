// Runs the samples of the document's text, and the files in examples/.
import { readFile } from 'node:fs/promises'
import t from 'tap'
import { storePlants } from '../../support/plants.ts'
import { asShipped } from '../../support/program.ts'
import { openSamples, run } from './samples.ts'

const { as, url, alice, env, codeOf, script } = await openSamples(t, import.meta.dirname)
// Await this command before the first test. During an `await` between two tests, tap may end the file.
const hasPython = await run('python3', ['--version']).then(() => true, () => false)
const needsPython = { skip: !hasPython && 'no python3' }
const samplesOf = (section: string) =>
  ['sh', 'python', 'ts'].map((language) => codeOf(section, language).join('')) as [string, string, string]
const [sh, python, ts] = samplesOf('Quick start')

t.afterEach(() => alice.delete('42'))

t.test('the curl sample creates, lists and deletes a plant', async (t) => {
  t.equal((await run('sh', ['-c', sh], { env })).stdout, '{"name":"Fern"}[{"name":"Fern"}]')
})

t.test('the Python sample creates, lists and deletes a plant, or fails', needsPython, async (t) => {
  t.equal((await run('python3', ['-c', python], { env })).stdout, '{"name":"Fern"}\n[{"name":"Fern"}]\n')
  t.same((await alice.list()).json(), [])
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
  const [sh, ts] =
    ['sh', 'ts'].map((language) => codeOf('All plants, page by page', language).join('')) as [string, string]
  const pages = (await run('sh', ['-c', sh], { env: bob, cwd: t.testdir() })).stdout
  const each = pages.replaceAll('][', ']\n[').split('\n').map((page) => JSON.parse(page))
  t.strictSame(each.map(({ length }) => length), [20, 20, 5])
  t.strictSame(each.flat().map(({ name }) => name), names)
  t.equal((await script(ts, bob)).stdout, names.join('\n') + '\n')
  await t.rejects(script(ts, { ...env, TOKEN: 'x' }), /40102/)
})

t.test('createForSure retries a create and rejects a taken id', async (t) => {
  const [rule = ''] = codeOf('Retries', 'ts')
  const call = ts.split('console.log')[0]
  // `cut` makes the first `fetch` throw after the service has responded.
  const cut = 'let calls = 0; const real = fetch; globalThis.fetch = async (...args) => { const response = ' +
    'await real(...args); if (calls++ === 0) throw new Error(); return response }\n'
  const creates = ['Fern', 'Ivy'].map((name) => `await createForSure({ id: 42, name: '${name}' })\n`).join('')
  await t.rejects(script(`${cut}${call}${rule}${creates}`), /You already have a plant with this id/)
  t.same((await alice.list()).json(), [{ name: 'Fern' }])
})

t.test('examples/plants.ts creates, lists and deletes plants', async (t) => {
  t.equal((await run('env', [...asShipped, process.execPath, 'examples/plants.ts'], { env })).stdout, [
    "created { name: 'Monstera deliciosa', tag: 'tropical' }",
    "yours [ { name: 'Monstera deliciosa', tag: 'tropical' } ]",
    'left []\n'
  ].join('\n'))
})

t.test('the requests of examples/plants.http succeed one after the other', async (t) => {
  const file = await readFile('examples/plants.http', 'utf8')
  const requests =
    file.replaceAll('{{base}}', env.BASE).replaceAll('{{token}}', env.TOKEN).split(/^###.*\n/m).slice(1)
  const statuses: number[] = []
  for (const request of requests) {
    const [head = '', body] = request.trim().split('\n\n')
    const [start = '', ...headers] = head.split('\n')
    const [method, url = ''] = start.split(' ')
    const response = await fetch(url,
      { method, body, headers: headers.map((line) => line.split(': ') as [string, string]) })
    statuses.push(response.status)
  }
  t.same(statuses, [200, 200, 204])
})
