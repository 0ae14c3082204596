// Builds requests, and random parts of requests, for the fuzz cases.
import type { Random } from '../faults/random.ts'
import { largest, smallest, type Plant, type Plants } from './oracle.ts'

export interface Worker { user: string, authorization: string, plants: Plants }

export const edges = [
  smallest, -(2n ** 53n) - 1n, -1n, 0n, 1n, 2n, 5n, 2n ** 53n - 1n, 2n ** 53n, 2n ** 53n + 1n, largest - 1n,
  largest
]

export function head (method: string, path: string, authorization: string, headers: string[] = []): Buffer {
  return Buffer.from([
    `${method} ${path} HTTP/1.1`, 'Host: x', `Authorization: ${authorization}`, ...headers, '', ''
  ].join('\r\n'), 'latin1')
}

export function anyRequest (random: Random, { authorization, plants }: Worker): Buffer {
  const id = random.chance(0.5) && plants.size > 0 ? random.pick([...plants.keys()]) : random.pick(edges)
  const body = plantText(random)
  return random.pick([
    () => head('GET', '/plants', authorization),
    () => head('GET', `/plants?limit=${random.below(4)}`, authorization),
    () => head('DELETE', `/plants/${id}`, authorization),
    () => head('GET', '/livez', authorization),
    () => Buffer.concat([
      head('POST', '/plants', authorization,
        ['Content-Type: application/json', `Content-Length: ${Buffer.byteLength(body)}`]),
      Buffer.from(body)
    ]),
    () => Buffer.concat([
      head('POST', '/plants', authorization,
        ['Content-Type: application/json', 'Transfer-Encoding: chunked']),
      chunk(Buffer.from(body)), Buffer.from('0\r\n\r\n')
    ])
  ])()
}

export const anyQuery = (random: Random) =>
  random.chance(0.85) ? undefined : random.pick(['', '&', 'x=y', 'limit=1', 'x', '=1', '%zz'])

export const withQuery = (path: string, query: string | undefined) =>
  query === undefined ? path : `${path}?${query}`

export function plantText (random: Random): string {
  const digits = String(random.pick(edges))
  const someDigits = (max: number) =>
    Array.from({ length: 1 + random.below(max) }, () => random.chance(0.4) ? 0 : random.below(10)).join('')
  const anyNumber = () => [
    random.pick(['', '-']), someDigits(22).replace(/^0+(?=\d)/, ''),
    random.chance(0.5) ? `.${someDigits(20)}${'0'.repeat(random.below(5))}` : '',
    random.chance(0.5) ? `${random.pick(['e', 'E'])}${random.pick(['', '+', '-'])}${someDigits(2)}` : ''
  ].join('')
  const id = random.pick([
    () => digits, () => `${digits}.0`, () => `${digits}0e-1`, () => `${digits}.5`, () => `${digits}1`,
    () => '-0', anyNumber, anyNumber, anyNumber
  ])()
  const name = random.pick([
    'n', '', 'Monstera "deliciosa"', '🌱', 'é', '\uFFFD', '__proto__', '\u0000', '\uD800',
    'x'.repeat(random.below(2000))
  ])
  const fields = [
    `"id":${id}`, `"name":${JSON.stringify(name)}`,
    ...random.chance(0.5)
      ? [`"tag":${JSON.stringify(random.pick<Plant['tag'] | null>(['t', '', '🌵', null]))}`]
      : [],
    ...random.chance(0.2) ? ['"x":{"id":7,"y":[1.5,null]}'] : []
  ]
  return `{${random.shuffled(fields).join(random.pick([',', ', ', ' ,\n']))}}`
}

export const chunk = (bytes: Buffer) =>
  Buffer.concat([Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from('\r\n')])

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
  return [...bytes.subarray(0, 5000)].map((byte) => {
    const char = String.fromCharCode(byte)
    const stays = char === '%'
      ? keepsPercents
      : /[!-~]/.test(char) && !forbidden.includes(char) && random.chance(0.95)
    return stays ? char : `%${byte.toString(16).padStart(2, '0')}`
  }).join('')
}
