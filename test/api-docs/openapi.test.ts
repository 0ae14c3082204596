// Tests the OpenAPI document, runs the samples of its text, and the files in examples/.
import { readFile } from 'node:fs/promises'
import t from 'tap'
import { catalogue } from '../../src/errors.ts'
import { startApp } from '../support/app.ts'
import { storePlants } from '../support/plants.ts'
import { asShipped } from '../support/program.ts'
import { openSamples, run } from '../support/samples.ts'

interface RawResponse {
  description: string
  headers?: Record<string, { description: string, schema: { examples: string[] } }>
  content?: {
    'application/json': {
      schema: object
      example?: object
      examples?: Record<string, { value: { error: number } }>
    }
  }
}

const text = await readFile('openapi.json', 'utf8')
const document = JSON.parse(text)
const page = await readFile('docs/api.md', 'utf8')
const exampleOf = (response: RawResponse, number: number) =>
  Object.values(response.content?.['application/json'].examples ?? {})
    .find(({ value }) => value.error === number)

const { app, as } = await startApp(t, { BODY_LIMIT: '1000' })
const { as: asUser, url, alice, env, codeOf, script } = await openSamples(t, import.meta.dirname)
// Await this command before the first test. During an `await` between two tests, tap may end the file.
const hasPython = await run('python3', ['--version']).then(() => true, () => false)
const needsPython = { skip: !hasPython && 'no python3' }
const samplesOf = (section: string) =>
  ['sh', 'python', 'ts'].map((language) => codeOf(section, language).join('')) as [string, string, string]
const [sh, python, ts] = samplesOf('Quick start')

t.test('the service serves openapi.json unchanged', async (t) => {
  const served = await app.inject('/openapi.json')
  t.match(served.headers, { 'content-type': 'application/json' })
  t.equal(served.body, text, 'if the change is meant, npm run openapi writes the file anew')
})

interface Operation { operationId: string, tags: string[], responses: Record<string, RawResponse> }

const paths = Object.entries<Record<string, Operation>>(document.paths)
const operations = paths.flatMap(([, methods]) => Object.values(methods))
const responses = operations.flatMap(({ responses }) => Object.values(responses))

t.test('statuses are listed one by one, tags are described, and each body has an example', async (t) => {
  for (const [path, methods] of paths) {
    for (const { operationId, responses } of Object.values(methods)) {
      if (path.includes('{')) t.ok(responses[404], `${operationId} lists an unknown id in its \`errors\``)
    }
  }
  // Generators of clients do not understand ranges of statuses.
  const statuses = operations.flatMap(({ responses }) => Object.keys(responses))
  t.strictSame(statuses.filter((status) => !/^[2-5]\d\d$/.test(status)), [])
  const described = document.tags.map(({ name }: { name: string }) => name)
  t.strictSame(operations.flatMap(({ tags }) => tags).filter((tag) => !described.includes(tag)), [])
  for (const { description, content } of responses) {
    if (content === undefined) continue
    const { example, examples } = content['application/json']
    t.ok(example ?? examples, description)
  }
})

const errorsSection: string =
  document.tags.find(({ name }: { name: string }) => name === 'Errors').description

t.test('the document lists every error, and has an example in each operation that it concerns', async (t) => {
  for (const { name, number, message } of catalogue.values()) {
    t.match(errorsSection.replaceAll('\\', ''), `| ${number} | ${name} | ${message} |`)
    // No documented operation has these errors. They are for unknown paths, wrong methods and probes.
    if (['PATH_UNKNOWN', 'METHOD_NOT_ALLOWED', 'METHOD_UNKNOWN', 'STOPPING'].includes(name)) continue
    const examples = responses.flatMap((response) => exampleOf(response, number) ?? [])
    t.ok(examples.length > 0, name)
    for (const { value } of examples) t.match(value, { error: number, message })
  }
})

t.test('errors have the number and the headers that the document lists', async (t) => {
  const { authorization } = await as('alice')
  const readOnly = (await as('alice', { readOnly: true })).authorization
  const json = { authorization, 'content-type': 'application/json' }
  await app.inject({ method: 'POST', url: '/plants', headers: json, payload: { id: 1, name: 'Monstera' } })

  const requests = [
    ['post', '/plants', '/plants', json, '{'],
    ['post', '/plants', '/plants', json, '[]'],
    ['post', '/plants', '/plants', json, '{ "__proto__": 1 }'],
    ['post', '/plants', '/plants', json, '{ "id": 1, "name": "Monstera" }'],
    ['post', '/plants', '/plants', json, '{ "id": 9223372036854775808, "name": "Monstera" }'],
    ['post', '/plants', '/plants', json, '{ "id": 2 }'],
    ['post', '/plants', '/plants', json, '{ "id": 2, "name": 5 }'],
    ['post', '/plants', '/plants', json, `{ "id": 2, "name": "${'x'.repeat(1000)}" }`],
    ['post', '/plants', '/plants', json, Buffer.from([0xff])],
    ['post', '/plants', '/plants', { ...json, 'content-encoding': 'gzip' }, '{}'],
    ['post', '/plants', '/plants', { ...json, 'content-type': 'text/plain' }, '{}'],
    ['post', '/plants', '/plants', { ...json, authorization: readOnly }, '{}'],
    ['post', '/plants', '/plants', {}, '{}'],
    ['get', '/plants', '/plants', {}],
    ['get', '/plants', '/plants', { authorization: 'Bearer plant_1' }],
    ['get', '/plants', '/plants?limit=-1', { authorization }],
    ['get', '/plants', '/plants?after=42', { authorization }],
    ['get', '/plants', '/plants?a=%zz', { authorization }],
    ['get', '/plants', '/plants?offset=1', { authorization }],
    ['delete', '/plants/{id}', '/plants/1.5', { authorization }],
    ['delete', '/plants/{id}', '/plants/2', { authorization }],
    ['delete', '/plants/{id}', `/plants/${'1'.repeat(2000)}`, { authorization }],
    ['delete', '/plants/{id}', '/plants/1', { ...json, 'content-type': 'text/plain' }, '1'],
    ['delete', '/plants/{id}', '/plants/1', { authorization: readOnly }]
  ] as const
  for (const [method, path, url, headers, payload] of requests) {
    const response = await app.inject({ method, url, headers, payload })
    const { error } = response.json()
    const documented: RawResponse = document.paths[path][method].responses[response.statusCode]
    t.ok(exampleOf(documented, error), `${method} ${path} ${error}`)
    for (const name of ['www-authenticate', 'retry-after']) {
      const examples: unknown[] = documented?.headers?.[name]?.schema.examples ?? [undefined]
      t.ok(examples.includes(response.headers[name]), `${error}: ${name}`)
    }
  }
})

t.test('docs/api.md has a row for every operation and for every field of a new plant', async (t) => {
  for (const [path, methods] of paths) {
    for (const method of Object.keys(methods)) {
      const example = `${method.toUpperCase()} ${path.replaceAll(/\{\w+\}/g, '\\d+')}`
      t.match(page, new RegExp(`^\\|.*\`${example}\\b`, 'm'), example)
    }
  }
  for (const field of Object.keys(document.components.schemas.NewPlant.properties)) {
    t.match(page, new RegExp(`^\\| [^|]*\`${field}\``, 'm'), field)
  }
})

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
  const { authorization } = await asUser('bob')
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
