// Request bodies that make a parser, a validator or a regular expression as slow as possible.
import { settings } from '../../src/config.ts'
import { noPlant, notJson } from './error-response.ts'

const size = Number(settings.BODY_LIMIT.initial)
const fill = (start: string, unit: string, end: string) =>
  start + unit.repeat((size - start.length - end.length) / Buffer.byteLength(unit)) + end
const tooManyValues = [40006, 'The body is larger than this service accepts: at most 100 values.'] as const
const range = 'from -9223372036854775808 to 9223372036854775807.'
const noId = [40011, `id is missing: expected an integer ${range}`] as const
const badId = [40012, `id must be an integer ${range}`] as const
const badName = [40012, 'name must be a string.'] as const
const bigId = [40013, `id must be ${range}`] as const
/** Returns a body that is not JSON. */
const malformed = (body: string) => [body, ...notJson(body)] as const

/** A cheap body of the same size as the costly bodies, for comparison. */
export const plainBody = fill('{"id":1,"name":"', 'n', '"}')

type CostlyBody = readonly [body: string, ...error: readonly [] | readonly [number: number, message: string]]

/** Maps a description to a body and to the error that the body causes. A body without an error is valid. */
export const costlyBodies: Record<string, CostlyBody> = {
  'arrays in arrays': ['['.repeat(size / 2) + ']'.repeat(size / 2), ...noPlant],
  'objects in objects': malformed(fill('', '{"a":', '')),
  'arrays around a fraction': [
    '['.repeat(size / 2 - 2) + '1.5' + ']'.repeat(size / 2 - 2), ...tooManyValues],
  'many numbers': [fill('{"x":[1.5', ',1', ']}'), ...tooManyValues],
  'many objects': [fill('{"x":[1.5', ',{}', ']}'), ...tooManyValues],
  'many fractions': [fill('{"x":[1.5', ',1.7', ']}'), ...tooManyValues],
  'many exponents': [fill('{"x":[1.5', ',1e-9', ']}'), ...tooManyValues],
  'many keys': [fill('{"x":{"":1.5', ',"\\u006b":1', '}}'), ...noId],
  'an id of many digits': [fill('{"id":', '9', ',"name":"n"}'), ...bigId],
  'an id of runs of zeros': [fill('{"id":1', '00000000001', ',"name":"n"}'), ...bigId],
  'a fraction of many zeros': [fill('{"name":"n","id":1.', '0', '1}'), ...badId],
  'a name that is many digits': [fill('{"id":1.0,"name":', '7', '}'), ...badName],
  'many colons after an id': malformed(fill('{"id"', ':', '')),
  'many minus signs': malformed(fill('{"id":', '-', '}')),
  'a long text deep inside an id': [
    fill(`{"id":${'{"a":'.repeat(90)}"`, 'x', `"${'}'.repeat(90)},"name":"n"}`), ...badId
  ],
  'many spaces': [fill('{"id":1.0,"name":', ' ', '1}'), ...badName],
  'a forbidden key and many spaces': [
    fill('{"id":1,"name":"n","x":{"__proto__"', ' ', ':1}}'), 40009,
    'The body must not have a key "__proto__".'
  ],
  'backslashes in a string without an end': malformed(fill('{"id":1.0,"name":"', '\\\\', '')),
  'garbage after many characters': malformed(fill('{"id":1,"name":"', 'n', '"}x')),
  'a lone surrogate at the end': [
    fill('{"id":1.0,"name":"', 'n', '\\ud800"}'), 40012,
    'name must be a string without lone surrogates (U+D800 to U+DFFF).'
  ],
  'a string for a body': [fill('"', 'n', '"'), ...noPlant],
  'a fraction of zeros': [fill('{"name":"n","id":1.', '0', '}')],
  'escaped quotes': [fill('{"id":2.0,"name":"', '\\"', '"}')],
  backslashes: [fill('{"id":3.0,"name":"', '\\\\', '"}')],
  'groups of 15 digits': [fill('{"id":4,"name":"', '123456789012345 ', '"}')],
  brackets: [fill('{"id":5.0,"name":"', '[{,:', '"}')],
  'characters of four bytes': [`{"id":6.0,"name":"${'😀'.repeat(size / 4 - 10)}"}`],
  'escapes of four digits': [fill('{"id":7,"name":"', '\\u0041', '"}')],
  'escaped surrogate pairs': [fill('{"id":8,"name":"', '\\ud83d\\ude00', '"}')],
  'escaped control characters': [fill('{"id":9,"name":"', '\\u0001', '"}')],
  'what looks like a forbidden key': [fill('{"id":10,"name":"', '__proto__', '"}')],
  'many ids': [fill('{"name":"n","id":11.0', ',"\\u0069\\u0064":11e0', '}')]
}
