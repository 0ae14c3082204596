// Builds requests, and random parts of requests, for the fuzz cases.
import type { Plant } from '../../../src/plants/plant.ts'
import type { Random } from '../faults/random.ts'
import { largest, smallest, type Plants } from './oracle.ts'

export interface Worker { user: string, authorization: string, plants: Plants }

export const edges = [
  smallest, -(2n ** 53n) - 1n, -1n, 0n, 1n, 2n, 5n, 2n ** 53n - 1n, 2n ** 53n, 2n ** 53n + 1n, largest - 1n,
  largest
]

/** Names that JavaScript looks up when code converts, serializes, awaits or inspects an object. */
const specialNames = ['toString', 'valueOf', 'toJSON', 'then', 'constructor', 'length', 'hasOwnProperty',
  'Symbol.toPrimitive', 'prototype', 'id', 'name']

/** Headers that do not change the response to a list. */
export const ignoredHeaders = ['traceparent', 'X-Forwarded-For', 'Forwarded', 'Accept', 'Origin', 'Cookie',
  'X-Request-Id', 'Proxy-Connection', 'Access-Control-Request-Method', 'If-None-Match', '__proto__']

export const specialName = (random: Random) => random.chance(0.3) ? 'toString' : random.pick(specialNames)

/** Returns a JSON value that is no text and no number, with special names at up to three levels. */
export function anyObject (random: Random, levels = 1 + random.below(3)): unknown {
  const value = random.pick([1, null, true, 'x', [], {}, levels > 1 ? anyObject(random, levels - 1) : ''])
  const names = Array.from({ length: 1 + random.below(2) }, () => specialName(random))
  return random.chance(0.2) ? [value] : Object.fromEntries(names.map((name) => [name, value]))
}

export const head = (method: string, path: string, authorization: string, headers: string[] = []) =>
  Buffer.from([
    `${method} ${path} HTTP/1.1`, 'Host: x', `Authorization: ${authorization}`, ...headers, '', ''
  ].join('\r\n'), 'latin1')

/** Builds a POST request. A body in non-empty parts is chunked. */
export function post (path: string, authorization: string, headers: string[], body: Buffer | Buffer[]) {
  const isChunked = Array.isArray(body)
  const framing = isChunked ? 'Transfer-Encoding: chunked' : `Content-Length: ${body.length}`
  const parts = isChunked ? [...body, Buffer.alloc(0)].map(chunk) : [body]
  return Buffer.concat([head('POST', path, authorization, [...headers, framing]), ...parts])
}

const chunk = (bytes: Buffer) =>
  Buffer.from(`${bytes.length.toString(16)}\r\n${bytes.toString('latin1')}\r\n`, 'latin1')

/** Picks an edge, or the id of one of the plants. */
export const anyId = (random: Random, plants: Plants) =>
  random.pick(random.chance(0.5) && plants.size > 0 ? [...plants.keys()] : edges)

export function anyRequest (random: Random, { authorization, plants }: Worker): Buffer {
  const body = Buffer.from(plantText(random))
  return random.pick([
    () => head('GET', '/plants', authorization),
    () => head('GET', `/plants?limit=${random.below(4)}`, authorization),
    () => head('DELETE', `/plants/${anyId(random, plants)}`, authorization),
    () => head('GET', '/livez', authorization),
    () => post('/plants', authorization, ['Content-Type: application/json'], body),
    () => post('/plants', authorization, ['Content-Type: application/json'], [body])
  ])()
}

/** Returns nothing, or a query with its question mark. */
export const anyQuery = (random: Random) =>
  random.chance(0.85)
    ? ''
    : random.pick([
      '?', '?&', '?x=y', '?limit=1', '?x', '?=1', '?%zz', '?__proto__=1', `?${specialName(random)}=1`
    ])

export function plantText (random: Random): string {
  const edge = random.pick(edges)
  const digits = (max: number) =>
    Array.from({ length: 1 + random.below(max) }, () => random.chance(0.4) ? 0 : random.below(10)).join('')
  const number = [
    random.pick(['', '-']), digits(22).replace(/^0+(?=\d)/, ''),
    random.chance(0.5) ? `.${digits(20)}${'0'.repeat(random.below(5))}` : '',
    random.chance(0.5) ? `${random.pick(['e', 'E'])}${random.pick(['', '+', '-'])}${digits(2)}` : ''
  ].join('')
  // The type makes the compiler demand a value for each new field of a plant.
  const values: Record<keyof Plant | 'id' | 'x', string | undefined> = {
    id: random.pick([
      number, number, number, `${edge}`, `${edge}.0`, `${edge}0e-1`, `${edge}.5`, `${edge}1`, '-0'
    ]),
    name: JSON.stringify(random.pick([
      'n', '', 'Monstera "deliciosa"', '🌱', 'é', '\uFFFD', '__proto__', '\u0000', '\uD800',
      'x'.repeat(random.below(2000))
    ])),
    tag: random.chance(0.5) ? JSON.stringify(random.pick(['t', '', '🌵', null])) : undefined,
    x: random.chance(0.2) ? '{"id":7,"y":[1.5,null]}' : undefined
  }
  if (random.chance(0.3)) {
    values[random.pick(['id', 'id', 'name', 'tag', 'x'] as const)] = JSON.stringify(anyObject(random))
  }
  const additional = random.chance(0.2) ? [[specialName(random), JSON.stringify(anyObject(random))]] : []
  const fields = [...Object.entries(values), ...additional].filter(([, value]) => value !== undefined)
    .map(([key, value]) => `"${key}":${value}`)
  return `{${random.shuffled(fields).join(random.pick([',', ', ', ' ,\n']))}}`
}

/** Splits bytes into one to four non-empty parts. */
export function split (random: Random, bytes: Buffer): Buffer[] {
  const cuts = random.chance(0.7)
    ? []
    : Array.from({ length: random.below(4) }, () => random.below(bytes.length + 1)).sort((a, b) => a - b)
  return [0, ...cuts].map((cut, index) => bytes.subarray(cut, cuts[index] ?? bytes.length))
    .filter((part) => part.length > 0)
}

/** Percent-encodes bytes that must be encoded, and 5 % of the others. Half of the calls encode `%`. */
export function escapeUrl (random: Random, bytes: Buffer, forbidden: string): string {
  const keepsPercents = random.chance(0.5)
  return bytes.toString('latin1', 0, 5000).replaceAll(/[^]/g, (char) => {
    const stays = char === '%'
      ? keepsPercents
      : /[!-~]/.test(char) && !forbidden.includes(char) && random.chance(0.95)
    return stays ? char : `%${char.charCodeAt(0).toString(16).padStart(2, '0')}`
  })
}
