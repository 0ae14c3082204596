import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { isError } from '../support/error-response.ts'

const smallest = '-9223372036854775808'
const largest = '9223372036854775807'
const expectation = 'id must be an integer from -9223372036854775808 to 9223372036854775807.'
const outOfRange = 'id must be from -9223372036854775808 to 9223372036854775807.'
const pathExpectation =
  'The id in the path must be a decimal integer from -9223372036854775808 to 9223372036854775807.'
const limitExpectation = 'limit must be a decimal integer from 0 to 2147483647, given once.'

const zeros = (count: number) => '0'.repeat(count)

const { as, url } = await startApp(t)
const stored = async () =>
  (await sql(url, 'select owner, id::text from plants order by owner, plants.id')).map(({ id }) => id)

t.test('every JSON spelling of an integer gives the same id', async (t) => {
  const alice = await as('alice')
  const spellings: Array<[id: string, sources: string[]]> = [
    [
      '0',
      [
        '0', '-0', '0.0', '-0.00', '0e0', '0E+5', '0e-5', '0e999999999999999999999', '0.0e-999999999',
        `0.${zeros(5000)}`
      ]
    ],
    [
      '1',
      [
        '1', '1.0', '1.000', '10e-1', '1e0', '1E0', '1e+0', '1e-0', '100E-2', '0.1e1', '0.01E+2',
        `1.${zeros(5000)}`, `1${zeros(5000)}e-5000`, `0.${zeros(4999)}1e5000`, '1e00000'
      ]
    ],
    ['-1', ['-1', '-1.0', '-10e-1', '-0.1E1']],
    ['120', ['120', '12e1', '1.2e2', '1200e-1', '0.12e3']],
    ['1000000000000000', ['1000000000000000', '1e15', '1000000000000000.0', '0.001e18']],
    ['9007199254740991', ['9007199254740991', '9007199254740991.0']],
    ['9007199254740992', ['9007199254740992', '9.007199254740992e15']],
    ['9007199254740993', [
      '9007199254740993', '9007199254740993.0', '9007199254740993000e-3', '9.007199254740993E15'
    ]],
    ['-9007199254740993', ['-9007199254740993', '-9.007199254740993e+15']],
    ['9223372036854775806', ['9223372036854775806']],
    [largest, [
      largest, `${largest}.0`, `${largest}e0`, `${largest}000e-3`, '9.223372036854775807e18',
      '0.9223372036854775807e19'
    ]],
    [smallest, [smallest, `${smallest}.00`, '-9.223372036854775808E+18', '-922337203685477580800e-2']]
  ]
  for (const [id, sources] of spellings) {
    for (const source of sources) {
      const created = await alice.create(`{"name":"n","id":${source},"tag":"t"}`)
      const deleted = await alice.delete(id)
      t.same([created.statusCode, deleted.statusCode], [200, 204], source.slice(0, 40))
    }
  }
  t.same(await stored(), [])
})

t.test('the id is exact at any position in the body', async (t) => {
  const alice = await as('alice')
  const id = '9007199254740993'
  const bodies = [
    `{"id":${id},"name":"a"}`,
    `{"name":"a","id":${id}}`,
    ` \n\t{ \r"id"\n : \t ${id} \r\n , "name" : "a" } `,
    `\uFEFF{"id":${id},"name":"a"}`,
    `{"x":{"id":5},"id":${id},"name":"a","y":[{"id":6}]}`,
    `{"x":[{"id":5},"id"],"id":${id},"name":"a"}`,
    `{"name":"\\"id\\":5,","id":${id}}`,
    `{"name":"a\\\\","id":${id}}`,
    `{"id":5,"name":"a","id":${id}}`,
    `{"id":9007199254740995,"name":"a","i\\u0064":${id}}`,
    `{"id":"x","\\u0069\\u0064":${id},"name":"a"}`,
    `{"id":${id},"name":"id","tag":"id"}`,
    `{"":"id","ID":1,"id ":2,"id":${id},"name":"a","ids":9007199254740995}`,
    `{"name":"a","id":${id}, "x":${'['.repeat(90)}${']'.repeat(90)}}`,
    `{"name":"${'a'.repeat(5000)}","id":${id}}`
  ]
  for (const body of bodies) {
    const created = await alice.create(body)
    const deleted = await alice.delete(id)
    t.same([created.statusCode, deleted.statusCode], [200, 204], body.slice(0, 60))
  }
})

t.test('a value that is not a 64-bit integer is rejected as an id and stores nothing', async (t) => {
  const alice = await as('alice')
  const rejected: Array<[number, string, string[]]> = [
    [40013, outOfRange, [
      '9223372036854775808', '-9223372036854775809', '9223372036854775808.0', '9223372036854775807.0e1',
      '1e19', '-1e19', '18446744073709551615', '340282366920938463463374607431768211456', '1e308', '1e309',
      '-1e309', '1e999999999999999999999', `1${zeros(5000)}`, '9'.repeat(1000), `1${zeros(5000)}e-4980`
    ]],
    [40012, expectation, [
      '0.5', '-0.5', '1.5', '1e-1', '10e-2', '9007199254740993.5', '9223372036854775807.5',
      '-9223372036854775808.5', '0.1', '1e-400', '1e-999999999999999999999',
      '123456789012345.000000000000001', `1.${zeros(5000)}1`, `0.${zeros(5000)}1e5000`, '"1"',
      '"9007199254740993"', '""', 'true', 'false', 'null', '[]', '[1]', '{}', '{"id":1}'
    ]],
    [40008, 'The body is not valid JSON.', [
      '+1', '01', '-01', '.5', '1.', '-', '1e', '1e+', '0x10', '0b1', '1_000', '1n', 'NaN', 'Infinity',
      '-Infinity', 'undefined', '1 2', '1,000', '٥', '１', ''
    ]]
  ]
  for (const [number, message, sources] of rejected) {
    for (const source of sources) {
      isError(t, await alice.create(`{"id":${source},"name":"n"}`), number, message, source.slice(0, 40))
      isError(t, await alice.create(`{"id":1,"name":"n","id":${source}}`), number, message,
        `1 and then ${source.slice(0, 40)}`)
    }
  }
  const missing = 'id is missing: expected an integer from -9223372036854775808 to 9223372036854775807.'
  isError(t, await alice.create('{"name":"n"}'), 40011, missing)
  isError(t, await alice.create('{"ID":1,"name":"n"}'), 40011, missing)
  t.same(await stored(), [])
})

t.test('neighboring ids beyond 2^53 are different plants in creates, lists and deletes', async (t) => {
  const alice = await as('alice')
  const ids = [
    '9007199254740993', '9007199254740992', largest, '9223372036854775806', smallest, '-9223372036854775807',
    '0', '-1', '1', '10', '9', '-10'
  ]
  for (const id of ids) t.equal((await alice.create(`{"id":${id},"name":"${id}"}`)).statusCode, 200)
  const ascending = ids.map(BigInt).sort((a, b) => a < b ? -1 : 1).map(String)
  const names = async (query = '') =>
    (await alice.list(query)).json().map(({ name }: { name: string }) => name)
  t.same(await names(), ascending)
  t.same(await names('?limit=3'), ascending.slice(0, 3))

  isError(t, await alice.create('{"id":9007199254740993,"name":"other"}'), 40014,
    'You already have a plant with this id.')
  t.equal((await alice.delete('9007199254740992')).statusCode, 204)
  isError(t, await alice.delete('9007199254740992'), 40402, 'You have no plant with this id.')
  t.same(await names(), ascending.filter((id) => id !== '9007199254740992'))
  for (const id of await names()) t.equal((await alice.delete(id)).statusCode, 204)
  t.same(await stored(), [])
})

t.test('a path without a canonical 64-bit integer is rejected and deletes nothing', async (t) => {
  const bob = await as('bob')
  const ids = ['0', '1', '5', '-5', '10', '16', '255', '1000', '9007199254740992', largest, smallest]
  for (const id of ids) await bob.create(`{"id":${id},"name":"n"}`)
  const before = await stored()
  const rejected = [
    '', '+5', '%2B5', '--5', '-', '5-', '- 5', '-%205', '%205', '5%20', '%095', '5%0A', '%0A5', '5%00', '%00',
    '-0', '00', '05', '-05', '0000000000000000000000000000005', '5.0', '5.5', '5.', '.5', '5,0', '5e0', '1e3',
    '1E3', '10e-1', '0x10', '0X10', '0xff', '0b101', '0o5', '1_000', '1,000', '5n', '%D9%A5', '%EF%BC%95',
    '%E0%A5%AB', '%F0%9D%9F%93', '%E2%91%A4', '%E2%88%925', '%C2%B2', '5%CC%81', '%E2%80%8B5', '%EF%BB%BF5',
    'five', 'true', 'null', 'undefined', 'NaN', 'Infinity', '[5]', '%225%22', "'5'", '5;6', '5%3B6', '5%2F',
    '%2F5', '5%23', '5%3F', '*', ':id', '5%27%20or%201=1--', '5:int8', '9223372036854775808',
    '-9223372036854775809', '18446744073709551621', '99999999999999999999',
    '340282366920938463463374607431768211461', '9'.repeat(1000), '-', '%255', '%2535'
  ]
  for (const id of rejected) isError(t, await bob.delete(id), 40015, pathExpectation, id.slice(0, 40))
  t.same(await stored(), before)

  isError(t, await bob.delete('9'.repeat(1001)), 41401, 'The URL is too long.')
  for (const id of ['%zz', '5%', '%', '%5', '5%f', '%ff', '%C0%B5', '%ED%A0%80']) {
    isError(t, await bob.delete(id), 40002, 'The URL has a malformed percent escape: write % as %25.', id)
  }
  t.same(await stored(), before)
})

t.test('a percent-escaped digit counts as the digit', async (t) => {
  const carol = await as('carol')
  await carol.create('{"id":-15,"name":"n"}')
  t.equal((await carol.delete('%2D%315')).statusCode, 204)
  t.same((await carol.list()).json(), [])
})

t.test('a list accepts limit once, as a decimal int32, and no unknown parameter', async (t) => {
  const dave = await as('dave')
  for (const id of [1, 2, 3]) await dave.create({ id, name: String(id) })
  const count = async (query: string) => (await dave.list(query)).json().length
  for (const [query, expected] of Object.entries({
    '': 3,
    '?': 3,
    '?limit=0': 0,
    '?limit=1': 1,
    '?limit=2': 2,
    '?limit=4': 3,
    '?limit=2147483647': 3,
    '?limit=%32': 2,
    '?l%69mit=2': 2,
    '?&&&': 3
  })) t.equal(await count(query), expected, query)

  const rejected = [
    '', '=', '=1.5', '=1.0', '=1e1', '=1E1', '=true', '=false', '=null', '=-1', '=-0', '=+1', '=%2B1',
    '=%201', '=1%20', '=+', '=01', '=00', '=0x1', '=0b1', '=1_0', '=1,2', '=1n', '=2147483648', '=4294967297',
    '=9007199254740993', '=99999999999999999999', `=${'9'.repeat(1000)}`, '=Infinity', '=NaN', '=all',
    '=%D9%A5', '=%EF%BC%95', '=1%00', '=%00', '=[1]', '=1;2', '=1=1', '=1&limit=1', '=1&limit=2', '=1&limit',
    '=1&limit=', '=&limit=1', '=1&l%69mit=1'
  ]
  for (const query of rejected) {
    isError(t, await dave.list(`?limit${query}`), 40016, limitExpectation, query.slice(0, 40))
  }
  const unknown = {
    offset: ['offset=2', 'limit=1&offset=2', 'offset', 'offset=1&offset=2'],
    Limit: ['Limit=1'],
    limits: ['limits=1'],
    constructor: ['constructor=x'],
    __proto__x: ['__proto__x=1'],
    'This name': ['limit[]=1', 'limit%20=1', '=5', `plant_${'x'.repeat(43)}`, '%00=1', '%E2%82%AC=1']
  }
  for (const [name, queries] of Object.entries(unknown)) {
    for (const query of queries) {
      const message = `${name} is not a parameter here: use limit or after.`
      isError(t, await dave.list(`?${query}`), 40016, message, query)
    }
  }
  isError(t, await dave.list('?__proto__=1'), 40016, '__proto__ is not a parameter here: use limit or after.')
  isError(t, await dave.delete('1?force=true'), 40016, 'force is not a parameter here: use none.')
  t.equal(await count(''), 3)
  for (const query of [
    '?limit=%zz', '?limit=1%', '?%', '?x=%f', '?x=%ff', '?limit=1&y=%C0%80', '?x=1?y=%zz', '?limit=1&%zz=2'
  ]) {
    isError(t, await dave.list(query), 40002, 'The URL has a malformed percent escape: write % as %25.',
      query)
  }
})
