import { once } from 'node:events'
import { METHODS } from 'node:http'
import { connect } from 'node:net'
import pg from 'pg'
import { createRandom, type Random } from '../faults/random.ts'
import { createUsers } from '../faults/postgres.ts'
import { hasEnded } from '../../support/processes.ts'
import { acceptingJwts, startKeyServer } from '../../support/identity-provider.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { exchange, type ExchangeOptions, type RawResponse } from '../../support/raw.ts'
import { examplePaths } from '../../support/routes.ts'
import { complaintsOf, explain, expectOnly } from './checks.ts'
import { mutate } from './mutate.ts'
import { checkPath, create, cursorAt, list, remove, type Verdict } from './oracle.ts'
import {
  anyId, anyObject, anyQuery, anyRequest, edges, escapeUrl, head, ignoredHeaders, plantText, post,
  specialName, split, type Worker
} from './requests.ts'
import { readPlants } from './streams/store.ts'

type Send = (bytes: Buffer, options?: ExchangeOptions & { inOnePiece?: boolean }) => Promise<RawResponse[]>

/** Sends random requests, most of them faulty, to the service. Reports unexpected responses. */
export async function fuzz (scope: Scope, databaseUrl: string, seed: number, count: number, first = 0) {
  const provider = await startKeyServer(scope)
  const service = await unmeasured.serve(scope, {
    DATABASE_URL: databaseUrl, TOKEN_CACHE_TTL: '4s', MAX_QUEUED: '9999', ...acceptingJwts(provider.issuer)
  })
  const { address, child } = service
  const client = new pg.Pool({ connectionString: databaseUrl }).on('error', () => {})
  const names = ['ann', 'bob', 'cid']
  const users = [...names, ...names.map((name) => `${provider.issuer}|${name}`)]
  const exp = Math.floor(Date.now() / 1000) + 86_400
  const jwts = await Promise.all(names.map((sub) => provider.sign({ sub, exp })))
  const tokens = [...await createUsers(databaseUrl, names), ...jwts]
  /** Counts by a kind of case, such as `creates`, and by outcome: a status, an error number or `reset`. */
  const outcomes: Record<string, Record<string, number>> = {}
  const report = { validRequests: 0, outcomes, violations: [] as string[] }
  const kinds = [
    creates, creates, creates, creates, deletes, deletes, lists, strays, unauthenticated, claims, texts,
    streams, streams, streams, streams, streams, streams, resets
  ]
  let next = first

  await Promise.all(users.map(async (user, index) => {
    const worker = { user, authorization: `Bearer ${tokens[index]}`, plants: new Map() }
    while (next < first + count && report.violations.length < 20 && !hasEnded(child)) {
      await runCase(worker, next++)
    }
  }))

  report.violations.push(...complaintsOf(service))
  if (hasEnded(child)) report.violations.push('the service ended')
  await client.end()
  return report

  async function runCase (worker: Worker, index: number): Promise<void> {
    // Each case has its own seed, so that `--first` can repeat a single case.
    const random = createRandom(seed * 1_000_003 + index)
    const kind = random.pick(kinds)
    let sent: Buffer[] = []
    try {
      const results = await kind(random, worker, (bytes, options) => {
        sent = options?.inOnePiece ? [bytes] : split(random, bytes)
        const parts = sent.flatMap((part) => [part, () => new Promise(setImmediate)])
        return exchange(address, parts, { halfClose: true, ...options })
      })
      const counts = outcomes[kind.name] ??= {}
      for (const result of results) counts[result] = (counts[result] ?? 0) + 1
      const response = await fetch(`${address}/plants`, { headers: { authorization: worker.authorization } })
      const { status, headers } = response
      expectOnly([{ status, headers: Object.fromEntries(headers), body: await response.text() }],
        list(worker.plants))
      report.validRequests++
    } catch (error) {
      const input = JSON.stringify(Buffer.concat(sent).toString('latin1').slice(0, 1500))
      report.violations.push(`case ${index}, ${kind.name}: ${(error as Error).message}\n  ${input}`)
      worker.plants = await readPlants(client, worker.user)
    }
    if (worker.plants.size > 25) {
      await client.query('delete from plants where owner = $1', [worker.user])
      worker.plants.clear()
    }
  }

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
      ...isExpecting ? ['Expect: 100-continue'] : []
    ]
    const query = anyQuery(random)
    const responses = await send(
      post(`/plants${query}`, authorization, headers, isChunked ? split(random, body) : body))
    if (isExpecting && responses[0]?.status === 100) responses.shift()
    return expectOnly(responses,
      create(plants, { contentType, contentEncoding, isChunked, body, query: query.slice(1) }))
  }

  async function deletes (random: Random, { authorization, plants }: Worker, send: Send): Promise<string[]> {
    const original = random.chance(0.1) ? specialName(random) : String(anyId(random, plants))
    const id = random.chance(0.4)
      ? original
      : escapeUrl(random, mutate(random, Buffer.from(original), Buffer.from(`${random.pick(edges)}`)), '/?#')
    const query = anyQuery(random)
    // A request without a body may have any type.
    const types = [[], ['Content-Type: application/json'], ['Content-Type: text/plain', 'Content-Length: 0']]
    const responses = await send(
      head('DELETE', `/plants/${id}${query}`, authorization, random.pick(types)))
    return expectOnly(responses, remove(plants, id, query.slice(1)))
  }

  async function lists (random: Random, { authorization, plants }: Worker, send: Send): Promise<string[]> {
    const original = random.pick([
      `${specialName(random)}=1`, `limit=${specialName(random)}`, 'limit[toString]=1', '__proto__=1',
      'limit=0', 'limit=1', 'limit=3', 'limit=2147483647', 'limit=2&x=y', 'x=y', 'l%69mit=1', 'limit', '',
      `limit=2&after=${cursorAt(random.pick(edges))}`, `after=${cursorAt(random.pick(edges))}`
    ])
    const mutated = mutate(random, Buffer.from(original))
    const query = random.chance(0.3) ? original : escapeUrl(random, mutated, '#')
    const verdict = list(plants, query)
    const path = `/plants?${query}`
    if (random.chance(0.9)) return expectOnly(await send(head('GET', path, authorization)), verdict)
    // The response to HEAD has no body, so the status of an error must suffice.
    return expectOnly(await send(head('HEAD', path, authorization), { heads: [0] }),
      'number' in verdict ? { status: Math.floor(verdict.number / 100) } : { ...verdict, body: undefined })
  }

  async function strays (random: Random, { authorization }: Worker, send: Send): Promise<string[]> {
    const [path, allow] = random.pick(Object.entries(examplePaths)) as [string, string]
    const stray = escapeUrl(random, mutate(random, Buffer.from('/plantz')), '?#')
    const methods = METHODS.filter((method) => method !== 'CONNECT' && method !== 'HEAD')
    const others = methods.filter((method) => !allow.split(', ').includes(method))
    const [method, target, verdict] = random.pick<[string, string, { number: number, allow?: string }]>([
      [random.pick(['FOO', 'get', 'POSTS', 'X-Y', 'DELET']), path, { number: 50101 }],
      ['GET', `${path === '/' ? '/livez' : path}/`, { number: 40401 }],
      [random.pick(others), path, { number: 40501, allow }],
      [random.pick(methods), stray, checkPath(stray) ?? { number: 40401 }]
    ])
    if (target === stray && !/^\/(?!$|plants|livez|readyz|docs|openapi)/.test(stray)) return []
    const request = head(method, target, random.chance(0.5) ? authorization : 'Bearer x')
    // The service recognizes an unknown method only if the method arrives in one piece.
    return expectOnly(await send(request, { inOnePiece: verdict.number === 50101 }), verdict)
  }

  async function unauthenticated (random: Random, { authorization }: Worker, send: Send): Promise<string[]> {
    const wrong = mutate(random, Buffer.from(authorization)).toString('latin1')
      .replace(/[^\t -~]/g, '').trim()
    // A JWT may stay valid with another last character, because some bits of that character are unused.
    const withoutLast = (text: string) => text.includes('.') ? text.slice(0, -1) : text
    const isRight = withoutLast(wrong.replace(/^bearer\s+/i, 'Bearer ')) === withoutLast(authorization)
    if (wrong.length > 10_000 || isRight) return []
    const responses = await send(head('GET', '/plants', wrong))
    const isMissing = JSON.parse(responses[0]?.body ?? '').error === 40101
    return expectOnly(responses, { number: isMissing ? 40101 : 40102 })
  }

  /** Sends a JWT with an object in place of a claim. Its user has no plants. */
  async function claims (random: Random, _worker: Worker, send: Send): Promise<string[]> {
    const [claim, verdict] = random.pick<[string, Verdict]>([
      [random.pick(['sub', 'exp', 'nbf', 'iat', 'iss', 'aud']), { number: 40102 }],
      ['scope', { number: 40302 }],
      [random.pick(['jti', 'scp', specialName(random)]), list(new Map())]
    ])
    const token = await provider.sign({ sub: 'dan', [claim]: anyObject(random) })
    return expectOnly(await send(head('GET', '/plants', `Bearer ${token}`)), verdict)
  }

  /** Sends unusual texts in headers that do not change the response. */
  async function texts (random: Random, { authorization, plants }: Worker, send: Send): Promise<string[]> {
    const headers = Array.from({ length: 1 + random.below(4) }, () => {
      const text = mutate(random, Buffer.from(random.pick([specialName(random), '::1', '00-', 'null'])))
      // A header must have no control characters, and all headers together at most 16 KiB.
      const value = text.toString('latin1', 0, 1000).replaceAll(/[^\t -~\x80-\xff]/g, '')
      return `${random.pick([...ignoredHeaders, specialName(random)])}: ${value}`
    })
    return expectOnly(await send(head('GET', '/plants', authorization, headers)), list(plants))
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
    const requests = Array.from({ length: 1 + random.below(4) }, () => anyRequest(random, worker))
    const other = anyRequest(random, random.chance(0.5) ? worker : { ...worker, authorization: 'Bearer x' })
    const bytes = mutate(random, Buffer.concat(requests), other)
    // Node resets the connection.
    if (bytes.includes('CONNECT ')) return []
    const before = worker.plants
    const responses = await send(bytes)
    worker.plants = await readPlants(client, worker.user)
    explain(bytes, responses, before, worker.plants)
    return responses.map(({ status }) => String(status))
  }
}
