import { readFile } from 'node:fs/promises'
import t from 'tap'
import { catalogue } from '../../src/errors.ts'
import { startApp } from '../support/app.ts'

interface RawResponse {
  description: string
  headers?: Record<string, { schema: { examples: unknown[] } }>
  content?: Record<string, { example?: object, examples?: Record<string, { value: { error: number } }> }>
}
interface Operation { operationId: string, tags: string[], responses: Record<string, RawResponse> }

const text = await readFile('openapi.json', 'utf8')
const document = JSON.parse(text)
const page = await readFile('docs/api.md', 'utf8')
const paths = Object.entries<Record<string, Operation>>(document.paths)
const operations = paths.flatMap(([, methods]) => Object.values(methods))
const responses = operations.flatMap(({ responses }) => Object.values(responses))
const exampleOf = (response: RawResponse, number: number) =>
  Object.values(response.content?.['application/json']?.examples ?? {})
    .find(({ value }) => value.error === number)

const { app, as } = await startApp(t, { BODY_LIMIT: '1000' })

t.test('openapi.json is served unchanged, with single statuses, described tags and examples', async (t) => {
  t.equal((await app.inject('/openapi.json')).body, text, 'if the change is meant, run `npm run openapi`')
  for (const [path, methods] of paths.filter(([path]) => path.includes('{'))) {
    for (const { responses } of Object.values(methods)) t.ok(responses[404], `${path} lists an unknown id`)
  }
  t.notMatch(text, /"\$ref": "(?!#\/)/, 'each schema with an id is added to the app')
  // Generators of clients do not understand ranges of statuses.
  const statuses = operations.flatMap(({ responses }) => Object.keys(responses))
  t.strictSame(statuses.filter((status) => !/^[2-5]\d\d$/.test(status)), [])
  const described = document.tags.map(({ name }: { name: string }) => name)
  t.strictSame(operations.flatMap(({ tags }) => tags).filter((tag) => !described.includes(tag)), [])
  for (const { description, content = {} } of responses) {
    for (const { example, examples } of Object.values(content)) t.ok(example ?? examples, description)
  }
})

t.test('the document lists every error, and has an example of each', async (t) => {
  const { description } = document.tags.find(({ name }: { name: string }) => name === 'Errors')
  for (const { name, number, message } of catalogue.values()) {
    t.match(description.replaceAll('\\', ''), `| ${number} | ${name} | ${message} |`)
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
  const bodies = [
    '{', '[]', '{ "__proto__": 1 }', '{ "id": 1, "name": "Monstera" }', '{ "id": 2 }',
    '{ "id": 2, "name": 5 }', '{ "id": 9223372036854775808, "name": "Monstera" }',
    'x'.repeat(1001), Buffer.from([0xff])
  ]
  const requests = [
    ...bodies.map((body) => ['post', '/plants', '/plants', json, body] as const),
    ['post', '/plants', '/plants', { ...json, 'content-encoding': 'gzip' }, '{}'],
    ['post', '/plants', '/plants', { ...json, 'content-type': 'text/plain' }, '{}'],
    ['post', '/plants', '/plants', { ...json, authorization: readOnly }, '{}'],
    ['get', '/plants', '/plants', {}],
    ['get', '/plants', '/plants', { authorization: 'Bearer plant_1' }],
    ['get', '/plants', '/plants?limit=-1', { authorization }],
    ['get', '/plants', '/plants?a=%zz', { authorization }],
    ['delete', '/plants/{id}', '/plants/1.5', { authorization }],
    ['delete', '/plants/{id}', '/plants/2', { authorization }],
    ['delete', '/plants/{id}', `/plants/${'1'.repeat(2000)}`, { authorization }],
    ['delete', '/plants/{id}', '/plants/1', { ...json, 'content-type': 'text/plain' }, '1'],
    ['delete', '/plants/{id}', '/plants/1', { authorization: readOnly }]
  ] as const
  const sent = new Set<string>(requests.map(([method, path]) => `${method} ${path}`))
  for (const [path, methods] of paths) {
    for (const method of Object.keys(methods)) t.ok(sent.has(`${method} ${path}`), `${method} ${path}`)
  }
  for (const [method, path, url, headers, payload] of requests) {
    const response = await app.inject({ method, url, headers, payload })
    const { error } = response.json()
    const documented: RawResponse = document.paths[path][method].responses[response.statusCode]
    t.ok(exampleOf(documented, error), `${method} ${path} ${error}`)
    for (const name of ['www-authenticate', 'retry-after']) {
      const examples = documented?.headers?.[name]?.schema.examples ?? [undefined]
      t.ok(examples.includes(response.headers[name]), `${error}: ${name}`)
    }
  }
})

t.test('every response has the headers that the document lists, and only params cause 414', async (t) => {
  const limited = await startApp(t, { USER_RATE: '9/m', USER_BURST: '4' })
  const [alice, reader] = [await limited.as('alice'), await limited.as('alice', { readOnly: true })]
  const list: Operation = document.paths['/plants'].get
  const remove: Operation = document.paths['/plants/{id}'].delete
  const seen: number[] = []
  for (const [operation, send] of [
    [list, () => limited.app.inject('/plants')], [list, () => alice.list()], [list, () => alice.list('?x')],
    [remove, () => reader.delete(1)], [remove, () => alice.delete(1)], [list, () => alice.list()]
  ] as const) {
    const response = await send()
    const documented = operation.responses[response.statusCode]
    const common = ['x-request-id', 'ratelimit', 'ratelimit-policy']
    t.strictSame(common.filter((name) => name in (documented?.headers ?? {})),
      common.filter((name) => name in response.headers), `${response.statusCode}`)
    seen.push(response.statusCode)
  }
  t.strictSame(seen, [401, 200, 400, 403, 404, 429])
  const with414 = paths.filter(([, methods]) =>
    Object.values(methods).some(({ responses }) => '414' in responses)).map(([path]) => path)
  t.strictSame(with414, paths.map(([path]) => path).filter((path) => path.includes('{')))
})

t.test('docs/api.md has a row for every operation and for every field of a create', async (t) => {
  const common = /^\| Operation .* than (.*) and 5xx \|$/m.exec(page)?.[1]?.split(', ') as string[]
  for (const [path, methods] of paths) {
    for (const [method, { responses }] of Object.entries(methods)) {
      const example = `${method.toUpperCase()} ${path.replaceAll(/\{\w+\}/g, '\\d+')}`
      const [row, statuses] = new RegExp(`^\\|.*\`${example}\\b.*\\| (.*) \\|$`, 'm').exec(page) ?? []
      const [success, ...errors] = Object.keys(responses).filter((status) => !/^5/.test(status))
      t.match(row, `| ${success}`, example)
      t.equal(statuses, errors.filter((status) => !common.includes(status)).join(', '), example)
      t.ok(common.every((status) => errors.includes(status)), example)
    }
  }
  const schemas = Object.entries<{ properties: object }>(document.components.schemas)
  const fields = schemas.flatMap(([name, { properties }]) => /^New/.test(name) ? Object.keys(properties) : [])
  t.ok(fields.includes('tag'))
  for (const field of fields) t.match(page, new RegExp(`^\\| [^|]*\`${field}\``, 'm'), field)
})
