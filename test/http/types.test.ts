// Tests the types of values in bodies, paths and queries.
import { Type } from '@sinclair/typebox'
import t from 'tap'
import { defineErrors, errors } from '../../src/errors.ts'
import { parseJson } from '../../src/http/json.ts'
import { compileValidator, defineType, Int64 } from '../../src/http/validation.ts'
import { startApp } from '../support/app.ts'
import { isError } from '../support/error-response.ts'

const [smallest, largest] = [-(2n ** 63n), 2n ** 63n - 1n]
const int64 = `from ${smallest} to ${largest}`
const plain = 'without + or leading zeros'
const wrongId = `The id in the path must be a decimal integer ${int64}, ${plain}.`
const zeros = '0'.repeat(5000)

const { app, as } = await startApp(t)
const alice = await as('alice')

t.test('every JSON notation of a 64-bit integer has its exact value', async (t) => {
  for (const [value, sources] of [
    [0, ['0.0', '0e0', '0E+5', '0e999999999999999999999', '0.0e-999999999', `0.${zeros}`]],
    [1, ['1.0', '10e-1', '1e+0', '0.01E+2', `1.${zeros}`, `1${zeros}e-5000`, `0.${zeros}1e5001`, '1e00']],
    [2 ** 53 - 1, ['9007199254740991', '9007199254740991.0']],
    [2n ** 53n, ['9007199254740992', '9.007199254740992e15']],
    [2n ** 53n + 1n, ['9007199254740993', '9007199254740993000e-3', '9.007199254740993E15']],
    [-(2n ** 53n) - 1n, ['-9007199254740993', '-9.007199254740993e+15']],
    [largest, [`${largest}`, `${largest}.0`, `${largest}000e-3`, '0.9223372036854775807e19']],
    [smallest, [`${smallest}`, `${smallest}.00`, '-9.223372036854775808E+18']],
    // A double, or NaN for a fraction that JSON.parse rounds to an integer: both are no 64-bit integers.
    [2 ** 63, ['9223372036854775808', '9223372036854775808.0', '922337203685477580.8e1']],
    [1e19, ['1e19', '10000000000000000000']],
    [Infinity, ['1e309', '1e999999999999999999999']],
    [0.5, ['0.5', '5e-1']],
    [NaN, ['9007199254740993.5', '1.00000000000000000001', '123456789012345.000000000000001', `1.${zeros}1`,
      `${'9'.repeat(309)}.5`, `-1${zeros}1e-1`]]
  ] as const) {
    for (const source of sources) {
      t.strictSame(parseJson(`{"x":[5,"\\\\",{"id":${source}}],"y":7}`),
        { x: [5, '\\', { id: value }], y: 7 }, source.slice(0, 40))
    }
  }
})

t.test('the path of a delete needs a decimal 64-bit integer', async (t) => {
  await alice.create('{"id":-15,"name":"n"}')
  await alice.create('{"id":5,"name":"n"}')
  for (const id of [
    '', '+5', '--5', '-', '%205', '5%20', '5%0A', '5%00', '-0', '00', '05', '5.0', '0x5', '%D9%A5', '5%2F',
    '5%23', '*', '5%27%20or%201=1--', `${largest + 1n}`, `${smallest - 1n}`, '9'.repeat(992), '%2535'
  ]) isError(t, await alice.delete(id), 40015, wrongId, id)
  for (const id of [smallest, largest]) {
    isError(t, await alice.delete(id), 40402, 'You have no plant with this id.', `${id}`)
  }
  t.equal((await alice.delete('%2D%315')).statusCode, 204, 'a percent-escaped digit counts as the digit')
  t.strictSame((await alice.list()).json(), [{ name: 'n' }])
})

t.test('a query has known parameters only, and limit once as a decimal int32', async (t) => {
  for (const query of ['?', '?limit=1', '?limit=2147483647', '?l%69mit=%32', '?&&&']) {
    t.strictSame((await alice.list(query)).json(), [{ name: 'n' }], query)
  }
  const limit = `limit must be a decimal integer from 0 to 2147483647, ${plain}, given once.`
  for (const query of [
    '', '=', '=1.0', '=1e1', '=-1', '=-0', '=%2B1', '=%201', '=1%20', '=01', '=0x1', '=2147483648', '=%D9%A5',
    '=1=1', '=1&limit=1', '=1&l%69mit=1'
  ]) isError(t, await alice.list(`?limit${query}`), 40016, limit, query)
  for (const [name, query] of [
    ['offset', 'limit=1&offset=2'], ['Limit', 'Limit=1'], ['__proto__', '__proto__=1'],
    ['This name', `plant_${'x'.repeat(43)}`]
  ]) {
    isError(t, await alice.list(`?${query}`), 40016, `${name} is not a parameter here: use limit or after.`)
  }
  isError(t, await alice.delete('5?force=true'), 40016, 'force is not a parameter here: use none.')
  const root = await app.inject('/?limit=10&after=MQ')
  isError(t, root, 40016, 'limit is not a parameter here: use none.', 'the URL of a page, resolved wrongly')
})

t.test('the message names a field at any depth, and headers cannot have a schema', async (t) => {
  const schema = Type.Object({
    glazed: Type.Boolean(),
    cracks: Type.Array(Type.Object({ found: Int64({ description: '' }) }))
  })
  const validate = compileValidator({ schema, httpPart: 'body' })
  for (const [body, number, message] of [
    ['{"cracks":[]}', 40011, 'glazed is missing.'],
    ['{"glazed":"x","cracks":[]}', 40012, 'glazed is not valid: Expected boolean.'],
    [`{"glazed":true,"cracks":[{"found":5},{"found":${smallest - 1n}}]}`, 40013,
      `cracks.1.found must be ${int64}.`]
  ] as const) t.match(validate(parseJson(body)), { error: { number, message } }, body)
  t.throws(() => compileValidator({ schema, httpPart: 'headers' }),
    { message: /Validation supports no schema of headers/ })
})

t.test('two errors cannot have the same name or number, and two types the same name', async (t) => {
  t.throws(() => defineType('Int64', '', {}, () => true), { message: 'Int64: the name is taken' })
  for (const [name, number] of [['POT_LOST', errors.INTERNAL.number], ['INTERNAL', 40998]] as const) {
    t.throws(() => defineErrors({ [name]: [number, 'The pot is broken.'] }),
      { message: `${name}: the name or ${number} is taken` })
  }
})
