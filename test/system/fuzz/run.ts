import { once } from 'node:events'
import { METHODS } from 'node:http'
import { connect } from 'node:net'
import { isDeepStrictEqual } from 'node:util'
import pg from 'pg'
import '../../../src/app.ts'
import { catalogue } from '../../../src/errors.ts'
import { createRandom, type Random } from '../faults/random.ts'
import { createUsers } from '../faults/postgres.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { exchange, type RawResponse } from '../../support/raw.ts'
import { examplePaths } from '../../support/routes.ts'
import { mutate } from './mutate.ts'
import { create, isDecodable, largest, list, readInteger, remove, smallest, type CreateRequest, type Plant, type Plants, type Verdict } from './oracle.ts'

const { serve } = unmeasured

export interface FuzzOptions {
  databaseUrl: string
  seed: number
  count: number
  /** Of all cases only this one. */
  only?: number | undefined
}

export interface FuzzReport {
  requests: number
  goodRequests: number
  /** How often each kind of case came to each outcome. */
  outcomes: Record<string, Record<string, number>>
  violations: string[]
}

interface Worker { user: string, authorization: string, plants: Plants }

const workerCount = 6
const edges = [smallest, -(2n ** 53n) - 1n, -1n, 0n, 1n, 2n, 5n, 2n ** 53n - 1n, 2n ** 53n, 2n ** 53n + 1n, largest - 1n, largest]
const statuses = new Set([200, 204, 400, 401, 404, 405, 408, 414, 417, 431, 501])
const unknownMethods = ['FOO', 'get', 'POSTS', 'X-Y', 'DELET']
const numbers = new Set(catalogue.keys())

/** Sends random requests, most of them faulty, to the real program, and tells where it did not do as it says. */
export async function fuzz (scope: Scope, { databaseUrl, seed, count, only }: FuzzOptions): Promise<FuzzReport> {
  const service = await serve(scope, { DATABASE_URL: databaseUrl, TOKEN_CACHE_TTL: '4s', MAX_QUEUED: '9999' })
  const { address } = service
  const client = new pg.Pool({ connectionString: databaseUrl, max: workerCount })
  // A connection that ends after the run is no news.
  client.on('error', () => {})
  const users = Array.from({ length: workerCount }, (_, index) => `fuzzed ${index}`)
  const tokens = await createUsers(databaseUrl, users)
  const report: FuzzReport = { requests: 0, goodRequests: 0, outcomes: {}, violations: [] }
  const kinds = [creates, creates, creates, creates, deletes, deletes, lists, strays, strangers, streams, streams, streams, streams, streams, streams, leavers]
  let next = only ?? 0

  await Promise.all(users.map(async (user, index) => {
    const worker = { user, authorization: `Bearer ${tokens[index]}`, plants: new Map() }
    while (next < (only === undefined ? count : only + 1) && report.violations.length < 20 && service.child.exitCode === null) await runCase(worker, next++)
  }))

  const unexpected = service.log.filter(({ level }) => /warn|error|fatal/.test(String(level)))
  if (unexpected.length > 0) report.violations.push(`the service logged ${JSON.stringify(unexpected.slice(0, 3))}`)
  if (service.stderr() !== '') report.violations.push(`the service wrote ${service.stderr().slice(0, 1000)}`)
  if (service.child.exitCode !== null || service.child.signalCode !== null) report.violations.push('the service ended')
  await client.end()
  return report

  async function runCase (worker: Worker, index: number): Promise<void> {
    // Of its own for each case, so that one can be repeated without those before it.
    const random = createRandom(seed * 1_000_003 + index)
    const kind = random.pick(kinds)
    let sent: Array<Buffer> = []
    try {
      const outcomes = await kind(random, worker, (bytes, options) => {
        sent = options?.inOnePiece ? [bytes] : split(random, bytes)
        return exchange(address, sent.flatMap((part) => [part, () => new Promise(setImmediate)]), { halfClose: true, ...options })
      })
      const counts = report.outcomes[kind.name] ??= {}
      for (const outcome of outcomes) counts[outcome] = (counts[outcome] ?? 0) + 1
      report.requests += outcomes.length
      await good(worker)
    } catch (error) {
      report.violations.push(`case ${index}, ${kind.name}: ${(error as Error).message}\n  ${JSON.stringify(Buffer.concat(sent).toString('latin1').slice(0, 1500))}`)
      worker.plants = await readPlants(worker.user)
    }
    if (worker.plants.size > 25) {
      await client.query('delete from plants where owner = $1', [worker.user])
      worker.plants.clear()
    }
  }

  /** A good request, on a connection that no bad one was on; it sees what the model has. */
  async function good ({ authorization, plants }: Worker): Promise<void> {
    const response = await fetch(`${address}/plants`, { headers: { authorization } })
    const expected = list(plants, undefined)
    const body = await response.json()
    if (!isDeepStrictEqual({ status: response.status, body }, expected)) throw new Error(`a good request got ${response.status} ${JSON.stringify(body)} for ${JSON.stringify(expected)}`)
    report.goodRequests++
  }

  async function readPlants (user: string): Promise<Plants> {
    const { rows } = await client.query<{ id: string, name: string, tag: string | null }>({ name: 'plants', text: 'select id::text, name, tag from plants where owner = $1', values: [user] })
    return new Map(rows.map(({ id, name, tag }) => [BigInt(id), { name, ...tag !== null && { tag } }]))
  }

  type Send = (bytes: Buffer, options?: { heads?: number[], inOnePiece?: boolean }) => Promise<RawResponse[]>

  async function creates (random: Random, { authorization, plants }: Worker, send: Send): Promise<string[]> {
    const original = Buffer.from(plantText(random))
    const body = random.chance(0.4) ? original : mutate(random, original, Buffer.from(plantText(random)))
    const contentType = random.chance(0.9) ? 'application/json' : random.pick([undefined, 'application/json; charset=utf-8', 'APPLICATION/JSON;charset="UTF-8"', 'application/json; charset=latin1', 'text/plain', 'application/jsonx', 'application/json ; x=y'])
    const contentEncoding = random.chance(0.97) ? undefined : random.pick(['gzip', 'identity', 'br'])
    const isChunked = random.chance(0.3)
    const isExpecting = random.chance(0.1)
    const headers = [
      ...contentType === undefined ? [] : [`Content-Type: ${contentType}`],
      ...contentEncoding === undefined ? [] : [`Content-Encoding: ${contentEncoding}`],
      ...isExpecting ? ['Expect: 100-continue'] : [],
      isChunked ? 'Transfer-Encoding: chunked' : `Content-Length: ${body.length}`
    ]
    const framed = isChunked ? Buffer.concat([...split(random, body).map(chunk), Buffer.from('0\r\n\r\n')]) : body
    const query = anyQuery(random)
    const responses = await send(Buffer.concat([head('POST', withQuery('/plants', query), authorization, headers), framed]))
    if (isExpecting && responses[0]?.status === 100) responses.shift()
    // Without a content type an empty body in chunks is not known to be empty.
    if (isChunked && contentType === undefined && isDecodable(query ?? '')) return expectOnly(responses, { number: 40004 })
    return expectOnly(responses, create(plants, { contentType, contentEncoding, body, query } satisfies CreateRequest))
  }

  async function deletes (random: Random, { authorization, plants }: Worker, send: Send): Promise<string[]> {
    const original = String(random.chance(0.6) && plants.size > 0 ? random.pick([...plants.keys()]) : random.pick(edges))
    const id = random.chance(0.4) ? original : escapeUrl(random, mutate(random, Buffer.from(original), Buffer.from(String(random.pick(edges)))), /[!-~]/, /[/?#%]/)
    const query = anyQuery(random)
    const responses = await send(head('DELETE', withQuery(`/plants/${id}`, query), authorization, random.chance(0.3) ? ['Content-Type: application/json'] : []))
    return expectOnly(responses, remove(plants, id, query))
  }

  async function lists (random: Random, { authorization, plants }: Worker, send: Send): Promise<string[]> {
    const original = random.pick(['limit=0', 'limit=1', 'limit=3', 'limit=2147483647', 'limit=2&x=y', 'x=y', 'l%69mit=1', 'limit', ''])
    const query = random.chance(0.3) ? original : escapeUrl(random, mutate(random, Buffer.from(original)), /[!-~]/, /[#]/)
    const isHead = random.chance(0.1)
    const responses = await send(head(isHead ? 'HEAD' : 'GET', `/plants?${query}`, authorization), { heads: isHead ? [0] : [] })
    const verdict = list(plants, query)
    if (!isHead) return expectOnly(responses, verdict)
    const status = 'number' in verdict ? Math.floor(verdict.number / 100) : 200
    if (responses[0]?.status !== status) throw new Error(`HEAD got ${JSON.stringify(responses)}`)
    return [String(status)]
  }

  async function strays (random: Random, { authorization }: Worker, send: Send): Promise<string[]> {
    const stray = escapeUrl(random, mutate(random, Buffer.from('/plantz')), /[!-~]/, /[?#%]/)
    // The service recognizes the request line of an unknown method when it arrives in one piece.
    if (random.chance(0.2)) return expectOnly(await send(head(random.pick(unknownMethods), random.pick(Object.keys(examplePaths)), authorization), { inOnePiece: true }), { number: 50101 })
    if (random.chance(0.1)) return expectOnly(await send(head('GET', `${random.pick(Object.keys(examplePaths).filter((path) => path !== '/'))}/`, authorization)), { number: 40401 })
    const [path, allow] = random.pick([...Object.entries(examplePaths), [stray, ''] as const])
    const allowed = allow === '' ? [] : allow.split(', ')
    const method = random.pick(METHODS.filter((method) => !['CONNECT', 'HEAD', ...allowed].includes(method)))
    if (!path.startsWith('/') || (allowed.length === 0 && /^\/(plants|livez|readyz|docs|openapi)/.test(path))) return []
    const responses = await send(head(method, path, random.chance(0.5) ? authorization : 'Bearer x'))
    const outcome = expectOnly(responses, { number: allowed.length > 0 ? 40501 : isDecodable(path) ? 40401 : 40002 })
    if (allowed.length > 0 && responses[0]?.headers.allow !== allow) throw new Error('a wrong Allow')
    return outcome
  }

  async function strangers (random: Random, { authorization }: Worker, send: Send): Promise<string[]> {
    const wrong = mutate(random, Buffer.from(authorization)).toString('latin1').replace(/[^\t -~]/g, '').trim()
    if (wrong.length > 10_000 || wrong.replace(/^bearer\s+/i, 'Bearer ') === authorization) return []
    const responses = await send(head('GET', '/plants', wrong))
    const [response] = responses
    const outcome = expectOnly(responses, { number: JSON.parse(response?.body ?? '').error === 40101 ? 40101 : 40102 })
    if (!response?.headers['www-authenticate']?.startsWith('Bearer realm="plants"')) throw new Error('no WWW-Authenticate')
    return outcome
  }

  /** Clients that reset the connection instead of waiting for a response. */
  async function leavers (random: Random, { authorization }: Worker): Promise<string[]> {
    const requests = [head('GET', '/plants', authorization), head('CONNECT', 'x:1', authorization), head('POST', '/plants', authorization, ['Expect: x', 'Content-Length: 5']), head('POST', '/plants', authorization, ['Content-Type: application/json', 'Content-Length: 5']), Buffer.from('x\r\n\r\n')]
    const { hostname, port } = new URL(address)
    const socket = connect(Number(port), hostname)
    await once(socket, 'connect')
    socket.write(Buffer.concat(random.shuffled(requests).slice(random.below(5))))
    if (random.chance(0.5)) await new Promise(setImmediate)
    socket.resetAndDestroy()
    await once(socket, 'close')
    return ['left']
  }

  /** Several requests on a connection, and faults anywhere in their bytes. */
  async function streams (random: Random, worker: Worker, send: Send): Promise<string[]> {
    const { user, authorization } = worker
    const requests = Array.from({ length: 1 + random.below(4) }, () => anyRequest(random, worker))
    const other = anyRequest(random, { ...worker, authorization: random.chance(0.5) ? authorization : 'Bearer x' })
    const bytes = mutate(random, Buffer.concat(requests), other)
    const before = worker.plants
    const responses = await send(bytes)
    const after = await readPlants(user)
    worker.plants = after
    explain(bytes, responses, before, after)
    return responses.map(({ status }) => String(status))
  }
}

/** Whether the only response is what the oracle says, to the letter. */
function expectOnly (responses: RawResponse[], verdict: Verdict): string[] {
  const [response] = responses
  if (responses.length !== 1 || response === undefined) throw new Error(`${responses.length} responses`)
  const { status, body } = response
  if ('number' in verdict) {
    checkError(response)
    if (JSON.parse(body).error !== verdict.number) throw new Error(`expected ${verdict.number}, got ${body}`)
    return [String(verdict.number)]
  }
  const expected = verdict.body === undefined ? '' : JSON.stringify(verdict.body)
  if (status !== verdict.status || body !== expected) throw new Error(`expected ${verdict.status} ${expected}, got ${status} ${body}`)
  return [String(status)]
}

function checkError ({ status, headers, body }: RawResponse): void {
  const { error, message, ...rest } = JSON.parse(body)
  if (!statuses.has(status) || !numbers.has(error) || Math.floor(error / 100) !== status || typeof message !== 'string' || message === '' || Object.keys(rest).length > 0 ||
    headers['content-type'] !== 'application/json' || headers['cache-control'] !== 'no-store' || !('date' in headers) || (status === 405) !== ('allow' in headers) || (status === 401) !== ('www-authenticate' in headers)) {
    throw new Error(`not an error as declared: ${status} ${JSON.stringify(headers)} ${body}`)
  }
}

/** Whether the responses to bytes of unknown meaning can be true. */
function explain (bytes: Buffer, responses: RawResponse[], before: Plants, after: Plants): void {
  const text = bytes.toString('latin1')
  const finals = responses.filter(({ status }) => status !== 100)
  if (finals.length === 0 && /[^\r\n]/.test(text)) throw new Error('no response')
  if (finals.length < responses.length && !/expect/i.test(text)) throw new Error('an interim response nobody asked for')
  const last = finals.findIndex(({ headers }) => headers.connection === 'close')
  if (last !== -1 && last !== finals.length - 1) throw new Error('a response after the last')

  const created: string[] = []
  const listed: string[] = []
  let deleted = 0
  for (const response of finals) {
    if (response.status === 204) deleted++
    else if (response.status !== 200) checkError(response)
    else {
      const body = JSON.parse(response.body)
      if (Array.isArray(body)) listed.push(...body.map((plant) => JSON.stringify(plant)))
      else if ('name' in body) created.push(JSON.stringify(body))
      else if (body.status !== 'ok' && !('openapi' in body)) throw new Error(`a strange success: ${response.body}`)
    }
  }
  const known = new Set([...created, ...[...before.values(), ...after.values()].map((plant) => JSON.stringify(plant))])
  for (const plant of listed) if (!known.has(plant)) throw new Error(`nobody made ${plant}`)
  if (after.size - before.size !== created.length - deleted) throw new Error(`${created.length} created and ${deleted} deleted took ${before.size} plants to ${after.size}`)
  const values = new Set([...text.matchAll(/-?\d+(\.\d+)?([eE][-+]?\d{1,6})?/g)].map(([source]) => source.length < 10_000 ? readInteger(source) : undefined))
  const paths = new Set([...text.matchAll(/\/plants\/([^ ?]*)/g)].map(([, id]) => id))
  for (const [id, plant] of after) {
    if (isDeepStrictEqual(before.get(id), plant)) continue
    if (!created.includes(JSON.stringify(plant))) throw new Error(`${id} was created, and nobody told`)
    if (!values.has(id)) throw new Error(`${id} was created, and nobody asked for it`)
  }
  for (const id of before.keys()) {
    if (!after.has(id) && !paths.has(String(id)) && ![...paths].some((path) => path?.includes('%'))) throw new Error(`${id} was deleted, and nobody asked for it`)
  }
}

function head (method: string, path: string, authorization: string, headers: string[] = []): Buffer {
  return Buffer.from([`${method} ${path} HTTP/1.1`, 'Host: x', `Authorization: ${authorization}`, ...headers, '', ''].join('\r\n'), 'latin1')
}

function anyRequest (random: Random, { authorization, plants }: Worker): Buffer {
  const id = random.chance(0.5) && plants.size > 0 ? random.pick([...plants.keys()]) : random.pick(edges)
  const body = plantText(random)
  return random.pick([
    () => head('GET', '/plants', authorization),
    () => head('GET', `/plants?limit=${random.below(4)}`, authorization),
    () => head('DELETE', `/plants/${id}`, authorization),
    () => head('GET', '/livez', authorization),
    () => Buffer.concat([head('POST', '/plants', authorization, ['Content-Type: application/json', `Content-Length: ${Buffer.byteLength(body)}`]), Buffer.from(body)]),
    () => Buffer.concat([head('POST', '/plants', authorization, ['Content-Type: application/json', 'Transfer-Encoding: chunked']), chunk(Buffer.from(body)), Buffer.from('0\r\n\r\n')])
  ])()
}

const anyQuery = (random: Random) => random.chance(0.85) ? undefined : random.pick(['', '&', 'x=y', 'limit=1', 'x', '=1', '%zz'])

const withQuery = (path: string, query: string | undefined) => query === undefined ? path : `${path}?${query}`

function plantText (random: Random): string {
  const digits = String(random.pick(edges))
  const someDigits = (most: number) => Array.from({ length: 1 + random.below(most) }, () => random.chance(0.4) ? 0 : random.below(10)).join('')
  const anyNumber = () => [
    random.pick(['', '-']), someDigits(22).replace(/^0+(?=\d)/, ''),
    random.chance(0.5) ? `.${someDigits(20)}${'0'.repeat(random.below(5))}` : '',
    random.chance(0.5) ? `${random.pick(['e', 'E'])}${random.pick(['', '+', '-'])}${someDigits(2)}` : ''
  ].join('')
  const id = random.pick([() => digits, () => `${digits}.0`, () => `${digits}0e-1`, () => `${digits}.5`, () => `${digits}1`, () => '-0', anyNumber, anyNumber, anyNumber])()
  const name = random.pick(['n', '', 'Monstera "deliciosa"', '🌱', 'é', '\uFFFD', '__proto__', '\u0000', '\uD800', 'x'.repeat(random.below(2000))])
  const fields = [`"id":${id}`, `"name":${JSON.stringify(name)}`, ...random.chance(0.5) ? [`"tag":${JSON.stringify(random.pick<Plant['tag'] | null>(['t', '', '🌵', null]))}`] : [], ...random.chance(0.2) ? ['"x":{"id":7,"y":[1.5,null]}'] : []]
  return `{${random.shuffled(fields).join(random.pick([',', ', ', ' ,\n']))}}`
}

const chunk = (bytes: Buffer) => Buffer.concat([Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from('\r\n')])

/** In one to four parts, none of them empty. */
function split (random: Random, bytes: Buffer): Buffer[] {
  const cuts = random.chance(0.7) ? [] : Array.from({ length: random.below(4) }, () => random.below(bytes.length + 1)).sort((a, b) => a - b)
  return [0, ...cuts].map((cut, index) => bytes.subarray(cut, cuts[index] ?? bytes.length)).filter((part) => part.length > 0)
}

/** Bytes as a part of a URL that HTTP lets pass: escaped where they must be, and at times where they need not; what they have of percent signs may stay. */
function escapeUrl (random: Random, bytes: Buffer, allowed: RegExp, forbidden: RegExp): string {
  const keepsPercents = random.chance(0.5)
  return [...bytes.subarray(0, 5000)].map((byte) => {
    const char = String.fromCharCode(byte)
    const stays = char === '%' ? keepsPercents : allowed.test(char) && !forbidden.test(char) && random.chance(0.95)
    return stays ? char : `%${byte.toString(16).padStart(2, '0')}`
  }).join('')
}
