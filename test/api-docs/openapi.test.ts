import { readFile } from 'node:fs/promises'
import t from 'tap'
import { catalogue } from '../../src/errors.ts'
import { startApp } from '../support/app.ts'

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
