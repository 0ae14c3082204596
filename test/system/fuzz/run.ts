import { once } from 'node:events'
import { METHODS } from 'node:http'
import { connect } from 'node:net'
import pg from 'pg'
import { createRandom, type Random } from '../faults/random.ts'
import { createUsers } from '../faults/postgres.ts'
import { acceptingJwts, startKeyServer } from '../../support/identity-provider.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { exchange, type RawResponse } from '../../support/raw.ts'
import { examplePaths } from '../../support/routes.ts'
import { explain, expectOnly } from './checks.ts'
import { mutate } from './mutate.ts'
import { create, cursorAt, isDecodable, list, remove, type Plants } from './oracle.ts'
import {
  anyQuery, anyRequest, chunk, edges, escapeUrl, head, plantText, split, withQuery, type Worker
} from './requests.ts'

const workerCount = 6
const unknownMethods = ['FOO', 'get', 'POSTS', 'X-Y', 'DELET']

/** Sends random requests, most of them faulty, to the service. Reports unexpected responses. */
export async function fuzz (scope: Scope, databaseUrl: string, seed: number, count: number, first = 0) {
  const provider = await startKeyServer(scope)
  const service = await unmeasured.serve(scope, {
    DATABASE_URL: databaseUrl, TOKEN_CACHE_TTL: '4s', MAX_QUEUED: '9999', ...acceptingJwts(provider.issuer)
  })
  const { address } = service
  const client = new pg.Pool({ connectionString: databaseUrl, max: workerCount })
  client.on('error', () => {})
  const names = Array.from({ length: workerCount }, (_, index) => `fuzzed ${index}`)
  const tokens = await createUsers(databaseUrl, names)
  const exp = Math.floor(Date.now() / 1000) + 86_400
  const users = await Promise.all(names.map(async (name, index) => index % 2 === 0
    ? { user: name, token: tokens[index] }
    : { user: `${provider.issuer}|${name}`, token: await provider.sign({ sub: name, exp }) }))
  /** Counts by a kind of case, such as `creates`, and by outcome: a status, an error number or `reset`. */
  const outcomes: Record<string, Record<string, number>> = {}
  const report = { requests: 0, validRequests: 0, outcomes, violations: [] as string[] }
  const kinds = [
    creates, creates, creates, creates, deletes, deletes, lists, strays, unauthenticated, streams, streams,
    streams, streams, streams, streams, resets
  ]
  let next = first
  const isOver = () =>
    next >= first + count || report.violations.length >= 20 || service.child.exitCode !== null

  await Promise.all(users.map(async ({ user, token }) => {
    const worker = { user, authorization: `Bearer ${token}`, plants: new Map() }
    while (!isOver()) await runCase(worker, next++)
  }))

  // The service warns that fsync is off on the server of `npm test`, and of a busy machine (`lagMs`).
  const unexpected = service.log
    .filter(({ level, off, lagMs }) => !off && !lagMs && /warn|error|fatal/.test(String(level)))
  if (unexpected.length > 0) {
    report.violations.push(`the service logged ${JSON.stringify(unexpected.slice(0, 3))}`)
  }
  if (service.stderr() !== '') report.violations.push(`the service wrote ${service.stderr().slice(0, 1000)}`)
  if (service.child.exitCode !== null || service.child.signalCode !== null) {
    report.violations.push('the service ended')
  }
  await client.end()
  return report

  async function runCase (worker: Worker, index: number): Promise<void> {
    // Each case has its own seed, so that `--first` can repeat a single case.
    const random = createRandom(seed * 1_000_003 + index)
    const kind = random.pick(kinds)
    let sent: Array<Buffer> = []
    try {
      const results = await kind(random, worker, (bytes, options) => {
        sent = options?.inOnePiece ? [bytes] : split(random, bytes)
        const parts = sent.flatMap((part) => [part, () => new Promise(setImmediate)])
        return exchange(address, parts, { halfClose: true, ...options })
      })
      const counts = outcomes[kind.name] ??= {}
      for (const result of results) counts[result] = (counts[result] ?? 0) + 1
      report.requests += results.length
      await sendValidList(worker)
    } catch (error) {
      const input = JSON.stringify(Buffer.concat(sent).toString('latin1').slice(0, 1500))
      report.violations.push(`case ${index}, ${kind.name}: ${(error as Error).message}\n  ${input}`)
      worker.plants = await readPlants(worker.user)
    }
    if (worker.plants.size > 25) {
      await client.query('delete from plants where owner = $1', [worker.user])
      worker.plants.clear()
    }
  }

  async function sendValidList ({ authorization, plants }: Worker): Promise<void> {
    const response = await fetch(`${address}/plants`, { headers: { authorization } })
    const received =
      { status: response.status, headers: Object.fromEntries(response.headers), body: await response.text() }
    expectOnly([received], list(plants, undefined))
    report.validRequests++
  }

  async function readPlants (user: string): Promise<Plants> {
    const { rows } = await client.query<{ id: string, name: string, tag: string | null }>({
      name: 'plants', text: 'select id::text, name, tag from plants where owner = $1', values: [user]
    })
    return new Map(rows.map(({ id, name, tag }) => [BigInt(id), { name, ...tag !== null && { tag } }]))
  }

  type Send = (bytes: Buffer, options?: { heads?: number[], inOnePiece?: boolean }) => Promise<RawResponse[]>

  async function creates (random: Random, { authorization, plants }: Worker, send: Send): Promise<string[]> {
    const original = Buffer.from(plantText(random))
    const body = random.chance(0.4) ? original : mutate(random, original, Buffer.from(plantText(random)))
    const contentType = random.chance(0.9)
      ? 'application/json'
      : random.pick([
        undefined, 'application/json; charset=utf-8', 'APPLICATION/JSON;charset="UTF-8"',
        'application/json; charset=latin1', 'text/plain', 'application/jsonx', 'application/json ; x=y'
      ])
    const contentEncoding = random.chance(0.97) ? undefined : random.pick(['gzip', 'identity', 'br'])
    const isChunked = random.chance(0.3)
    const isExpecting = random.chance(0.1)
    const headers = [
      ...contentType === undefined ? [] : [`Content-Type: ${contentType}`],
      ...contentEncoding === undefined ? [] : [`Content-Encoding: ${contentEncoding}`],
      ...isExpecting ? ['Expect: 100-continue'] : [],
      isChunked ? 'Transfer-Encoding: chunked' : `Content-Length: ${body.length}`
    ]
    const framed = isChunked
      ? Buffer.concat([...split(random, body).map(chunk), Buffer.from('0\r\n\r\n')])
      : body
    const query = anyQuery(random)
    const responses =
      await send(Buffer.concat([head('POST', withQuery('/plants', query), authorization, headers), framed]))
    if (isExpecting && responses[0]?.status === 100) responses.shift()
    // Without a content type, an empty body causes 40010, and any other body causes 40004. A chunked body
    // counts as not empty, because the service decides before the body arrives.
    if (isChunked && contentType === undefined && isDecodable(query ?? '')) {
      return expectOnly(responses, { number: 40004 })
    }
    return expectOnly(responses, create(plants, { contentType, contentEncoding, body, query }))
  }

  async function deletes (random: Random, { authorization, plants }: Worker, send: Send): Promise<string[]> {
    const original = String(random.chance(0.6) && plants.size > 0
      ? random.pick([...plants.keys()])
      : random.pick(edges))
    const other = Buffer.from(String(random.pick(edges)))
    const id = random.chance(0.4)
      ? original
      : escapeUrl(random, mutate(random, Buffer.from(original), other), '/?#')
    const query = anyQuery(random)
    const responses = await send(head('DELETE', withQuery(`/plants/${id}`, query), authorization,
      random.chance(0.3) ? ['Content-Type: application/json'] : []))
    return expectOnly(responses, remove(plants, id, query))
  }

  async function lists (random: Random, { authorization, plants }: Worker, send: Send): Promise<string[]> {
    const original = random.pick([
      'limit=0', 'limit=1', 'limit=3', 'limit=2147483647', 'limit=2&x=y', 'x=y', 'l%69mit=1', 'limit', '',
      `limit=2&after=${cursorAt(random.pick(edges))}`, `after=${cursorAt(random.pick(edges))}`
    ])
    const query = random.chance(0.3)
      ? original
      : escapeUrl(random, mutate(random, Buffer.from(original)), '#')
    const isHead = random.chance(0.1)
    const responses = await send(head(isHead ? 'HEAD' : 'GET', `/plants?${query}`, authorization),
      { heads: isHead ? [0] : [] })
    const verdict = list(plants, query)
    if (!isHead) return expectOnly(responses, verdict)
    const status = 'number' in verdict ? Math.floor(verdict.number / 100) : 200
    const link = 'number' in verdict ? undefined : verdict.link
    if (responses[0]?.status !== status || responses[0].headers.link !== link) {
      throw new Error(`HEAD got ${JSON.stringify(responses)}`)
    }
    return [String(status)]
  }

  async function strays (random: Random, { authorization }: Worker, send: Send): Promise<string[]> {
    const stray = escapeUrl(random, mutate(random, Buffer.from('/plantz')), '?#')
    // The service recognizes an unknown method only if the method arrives in one piece.
    if (random.chance(0.2)) {
      const request = head(random.pick(unknownMethods), random.pick(Object.keys(examplePaths)), authorization)
      return expectOnly(await send(request, { inOnePiece: true }), { number: 50101 })
    }
    if (random.chance(0.1)) {
      const path = random.pick(Object.keys(examplePaths).filter((path) => path !== '/'))
      return expectOnly(await send(head('GET', `${path}/`, authorization)), { number: 40401 })
    }
    const [path, allow] = random.pick([...Object.entries(examplePaths), [stray, ''] as const])
    const allowed = allow === '' ? [] : allow.split(', ')
    const method = random.pick(METHODS.filter((method) => !['CONNECT', 'HEAD', ...allowed].includes(method)))
    const isKnown = /^\/($|plants|livez|readyz|docs|openapi)/.test(path)
    if (!path.startsWith('/') || (allowed.length === 0 && isKnown)) return []
    const responses = await send(head(method, path, random.chance(0.5) ? authorization : 'Bearer x'))
    const outcome = expectOnly(responses,
      { number: allowed.length > 0 ? 40501 : isDecodable(path) ? 40401 : 40002 })
    if (allowed.length > 0 && responses[0]?.headers.allow !== allow) throw new Error('a wrong Allow')
    return outcome
  }

  async function unauthenticated (random: Random, { authorization }: Worker, send: Send): Promise<string[]> {
    const wrong = mutate(random, Buffer.from(authorization)).toString('latin1')
      .replace(/[^\t -~]/g, '').trim()
    // A JWT may stay valid with another last character, because some bits of that character are unused.
    const withoutLast = (text: string) => text.includes('.') ? text.slice(0, -1) : text
    const isRight = withoutLast(wrong.replace(/^bearer\s+/i, 'Bearer ')) === withoutLast(authorization)
    if (wrong.length > 10_000 || isRight) return []
    const responses = await send(head('GET', '/plants', wrong))
    const [response] = responses
    const outcome = expectOnly(responses,
      { number: JSON.parse(response?.body ?? '').error === 40101 ? 40101 : 40102 })
    if (!response?.headers['www-authenticate']?.startsWith('Bearer realm="plants"')) {
      throw new Error('no WWW-Authenticate')
    }
    return outcome
  }

  async function resets (random: Random, { authorization }: Worker): Promise<string[]> {
    const requests = [
      head('GET', '/plants', authorization), head('CONNECT', 'x:1', authorization),
      head('POST', '/plants', authorization, ['Expect: x', 'Content-Length: 5']),
      head('POST', '/plants', authorization, ['Content-Type: application/json', 'Content-Length: 5']),
      Buffer.from('x\r\n\r\n')
    ]
    const { hostname, port } = new URL(address)
    const socket = connect(Number(port), hostname)
    await once(socket, 'connect')
    socket.write(Buffer.concat(random.shuffled(requests).slice(random.below(5))))
    if (random.chance(0.5)) await new Promise(setImmediate)
    socket.resetAndDestroy()
    await once(socket, 'close')
    return ['reset']
  }

  /** Sends pipelined requests with faults at random places. */
  async function streams (random: Random, worker: Worker, send: Send): Promise<string[]> {
    const { user, authorization } = worker
    const requests = Array.from({ length: 1 + random.below(4) }, () => anyRequest(random, worker))
    const other = anyRequest(random,
      { ...worker, authorization: random.chance(0.5) ? authorization : 'Bearer x' })
    const bytes = mutate(random, Buffer.concat(requests), other)
    const before = worker.plants
    const responses = await send(bytes)
    const after = await readPlants(user)
    worker.plants = after
    explain(bytes, responses, before, after)
    return responses.map(({ status }) => String(status))
  }
}
