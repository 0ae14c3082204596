import { spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import t from 'tap'
import { startApp } from '../../support/app.ts'
import { sql } from '../../support/database.ts'
import { withoutHooks } from '../../support/program.ts'

// Prism is a proxy that checks requests and responses against openapi.json. Prism lists violations in a
// header of the response. Prism reads numbers as doubles, so another test covers ids beyond 2^53.
async function startPrism (address: string): Promise<string> {
  const prism = spawn('env', [...withoutHooks, 'prism', 'proxy', 'openapi.json', address, '--port', '0'],
    { stdio: ['ignore', 'pipe', 'inherit'] })
  t.teardown(() => { prism.kill() })
  for await (const line of createInterface(prism.stdout)) {
    const [, url] = /listening on (http\S+)/.exec(line) ?? []
    if (url !== undefined) {
      prism.stdout.resume()
      return url
    }
  }
  throw new Error(`Prism ended with ${prism.exitCode}`)
}

const { as, listen, url } = await startApp(t)
const prism = await startPrism(await listen())
const alice = (await as('alice')).authorization

async function call (
  method: string, path: string, authorization: string, body?: string, contentType = 'application/json'
) {
  const response = await fetch(`${prism}${path}`, {
    method,
    headers: { authorization, ...body !== undefined && { 'content-type': contentType } },
    body: body ?? null
  })
  const { status, headers } = response
  const text = await response.text()
  return {
    status,
    type: headers.get('content-type'),
    violations: headers.get('sl-violations'),
    body: text === '' ? undefined : JSON.parse(text)
  }
}

const inJson = { type: 'application/json', violations: null }

t.test('valid requests and their responses match the document', async (t) => {
  const readOnlyToken = (await as('alice', { readOnly: true })).authorization
  const as200 = (body: unknown) => ({ ...inJson, status: 200, body })
  const plants = [
    { id: 1, name: 'Monstera deliciosa', tag: 'tropical' }, { id: 0, name: '' },
    { id: -1, name: 'n', tag: '' }, { id: 9007199254740991, name: '🌵 "é" \\ \u0001' },
    { id: -9007199254740991, name: 'שלום' },
    { id: 2, name: 'x'.repeat(100_000) }, { id: 3, name: 'n', owner: 'bob', x: [{ id: 1 }] }
  ]

  t.match(await call('GET', '/plants', alice), as200([]))
  for (const { id, name, tag, ...rest } of plants) {
    t.same(await call('POST', '/plants', alice, JSON.stringify({ id, name, tag, ...rest })),
      as200({ name, ...tag !== undefined && { tag } }))
  }
  t.match(await call('POST', '/plants', alice, JSON.stringify(plants[0])),
    { ...inJson, status: 400, body: { error: 40014 } })
  const listed = plants.toSorted((a, b) => a.id - b.id).map(({ name, tag }) =>
    ({ name, ...tag !== undefined && { tag } }))
  for (const [query, count] of [
    ['', 7], ['?limit=0', 0], ['?limit=2', 2], ['?limit=2147483647', 7]
  ] as const) {
    t.same(await call('GET', `/plants${query}`, alice), as200(listed.slice(0, count)), query)
  }
  t.match(await call('DELETE', '/plants/-9007199254740991', alice),
    { status: 204, type: null, violations: null, body: undefined })
  t.match(await call('DELETE', '/plants/-9007199254740991', alice),
    { ...inJson, status: 404, body: { error: 40402 } })
  t.match(await call('GET', '/plants', 'Bearer x'), { ...inJson, status: 401, body: { error: 40102 } })
  t.match(await call('GET', '/plants', readOnlyToken), { ...inJson, status: 200 })
  t.match(await call('POST', '/plants', readOnlyToken, '{"id":5,"name":"n"}'),
    { ...inJson, status: 403, body: { error: 40301 } })
  t.match(await call('DELETE', '/plants/1', readOnlyToken),
    { ...inJson, status: 403, body: { error: 40301 } })
})

t.test('the responses to invalid requests and a long list match the document', async (t) => {
  const bob = (await as('bob')).authorization
  type Request = [error: number, method: string, path: string, body?: string, contentType?: string]
  const requests: Request[] = [
    [40004, 'POST', '/plants', 'x', 'text/plain'],
    [40009, 'POST', '/plants', '{"id":1,"name":"n","__proto__":1}'],
    [40010, 'POST', '/plants', '[]'],
    [40011, 'POST', '/plants', '{"id":1}'],
    [40012, 'POST', '/plants', '{"id":"1","name":"n"}'],
    [40012, 'POST', '/plants', '{"id":1.5,"name":"n"}'],
    [40012, 'POST', '/plants', '{"id":1,"name":"\\u0000"}'],
    [40012, 'POST', '/plants', '{"id":1,"name":"n","tag":null}'],
    [40013, 'POST', '/plants', '{"id":1e19,"name":"n"}'],
    [40017, 'POST', '/plants', JSON.stringify({ id: 1, name: 'n', x: Array(200).fill(0) })],
    [40016, 'GET', '/plants?limit=-1'],
    [40016, 'GET', '/plants?offset=1'],
    [40016, 'GET', '/plants?after=42'],
    [40016, 'GET', '/plants?limit=1.5'],
    [40016, 'GET', '/plants?limit='],
    [40016, 'GET', '/plants?limit=1&limit=2'],
    [40015, 'DELETE', '/plants/1.5'],
    [40015, 'DELETE', '/plants/x'],
    [40015, 'DELETE', '/plants/9223372036854775808'],
    [41401, 'DELETE', `/plants/${'1'.repeat(2000)}`],
    [40402, 'DELETE', '/plants/9223372036854775807']
  ]
  for (const [error, method, path, body, contentType] of requests) {
    const { violations, ...response } = await call(method, path, bob, body, contentType)
    const title = `${method} ${path.slice(0, 40)} ${body?.slice(0, 40)}`
    t.match(response,
      { type: 'application/json', status: Math.floor(error / 100), body: { error, message: String } }, title)
    const places: Array<{ location: string[] }> = JSON.parse(violations ?? '[]')
    t.ok(places.every(({ location: [side] }) => side === 'request'), `${title}: ${violations}`)
  }

  await sql(url, `insert into plants select 'bob', id, 'plant ' || id, case when id % 2 = 0 then 'even' end
    from generate_series(1, 5000) as id`)
  const list = await call('GET', '/plants', bob)
  t.match(list, { ...inJson, status: 200 })
  t.equal(list.body.length, 5000)
  await sql(url, 'drop table plants')
  t.match(await call('GET', '/plants', bob), { ...inJson, status: 503, body: { error: 50301 } })
})
