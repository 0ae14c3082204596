import type { Random } from '../faults/random.ts'

// Strings that often break parsers of HTTP, URLs and JSON.
const tokens = [
  '\r\n', '\n', '\r', '\r\n\r\n', '\0', '\t', ' ', ':', ';', ',', '"', '\\', '/', '?', '#', '%', '%00', '%zz',
  '%2f', '%ff', '..', '{', '}', '[', ']', '-', '+', '.', 'e', 'E', '0', '00', '1', '9', '-0', '0x10', '1e400',
  'NaN', 'null', 'true', '9223372036854775807', '9223372036854775808', '-9223372036854775808',
  '-9223372036854775809', '9007199254740993', '18446744073709551615', '"__proto__"', '"id"', '"name"',
  '"tag"', '"id":', '"id":{"toString":1},', '{"toJSON":{}}', '{"then":1}', '"constructor":',
  '"length":', '\\u0000', '\\ud800', '\\u', '\xFF', '\xC0\xAF', '\xED\xA0\x80', '\xEF\xBB\xBF',
  '\xF0\x9F\x98\x80', 'Content-Length: 0\r\n', 'Content-Length: 5\r\n', 'Content-Length: -1\r\n',
  'Content-Length: 99999999999999999999\r\n', 'Transfer-Encoding: chunked\r\n',
  'Transfer-Encoding: gzip, chunked\r\n', 'Transfer-Encoding:\x0Bchunked\r\n', 'Host: y\r\n',
  'Expect: 100-continue\r\n', 'Expect: x\r\n', 'Connection: close\r\n',
  'Connection: upgrade\r\nUpgrade: h2c\r\n', 'Content-Type: text/plain\r\n', 'Content-Encoding: gzip\r\n',
  'Authorization: Bearer x\r\n', 'Authorization: Basic eDp5\r\n', ' HTTP/1.1', ' HTTP/1.0', ' HTTP/2.0',
  'GET ', 'PUT ', 'CONNECT ', 'OPTIONS ', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', '0\r\n\r\n', '5\r\nhello\r\n',
  'ffffffff\r\n', '5;x=y\r\n'
].map((token) => Buffer.from(token, 'latin1'))

/** Returns `bytes` with one to four random faults. A fault may replace the last bytes by those of `other`. */
export function mutate (random: Random, bytes: Buffer, other: Buffer = bytes): Buffer {
  let result = bytes
  for (let faults = 1 + random.below(4); faults > 0; faults--) {
    const anywhere = random.below(result.length + 1)
    // Put half of the faults at the start of a line, where an entry of `tokens` can be a method or a header.
    const at = random.chance(0.5) ? anywhere : result.indexOf('\n', anywhere - 1) + 1
    const end = Math.min(result.length, at + 1 + random.below(random.chance(0.8) ? 8 : 200))
    const [before, part, after] = [result.subarray(0, at), result.subarray(at, end), result.subarray(end)]
    result = Buffer.concat(random.pick([
      () => [before, random.pick(tokens), part, after],
      () => [before, random.pick(tokens), after],
      () => [before, after],
      () => [before, part, part, after],
      () => [before, ...Array<Buffer>(random.below(random.chance(0.9) ? 20 : 3000)).fill(part), after],
      () => [before, Buffer.from(part.map((byte) => byte ^ (1 << random.below(8)))), after],
      () => [before, Buffer.from(part.map(() => random.below(256))), after],
      () => [before, Buffer.from(part).reverse(), after],
      () => [before],
      () => [before, other.subarray(random.below(other.length + 1))]
    ])())
    if (result.length > 2_000_000) return result.subarray(0, 2_000_000)
  }
  return result
}
