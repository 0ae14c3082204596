// Tests that a developer can add a second domain, pots, to the service.
import { Type } from '@sinclair/typebox'
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import t, { type Test } from 'tap'
import { ApiError, defineErrors, errors } from '../../src/errors.ts'
import { Int64, Int64Text, LimitText, UnicodeText } from '../../src/http/types.ts'
import { startApp } from '../support/app.ts'
import { exactIntegers, generateClient } from '../support/generated-client.ts'
import { isError } from '../support/error-response.ts'

const { POT_BROKEN } = defineErrors({ POT_BROKEN: { number: 40997, message: 'The pot is broken.' } })

const PotSchema = Type.Object({
  serial: Int64({ description: 'The number on the bottom of the pot', examples: [7] }),
  shelf: Type.Optional(Int64({ description: 'The number of the shelf', examples: [1] })),
  glazed: Type.Boolean({ examples: [true] }),
  height: Type.Integer({ minimum: 1, maximum: 300, examples: [20] }),
  colour: Type.Union([Type.Literal('red'), Type.Literal('green')], { examples: ['red'] }),
  maker: Type.Object({
    name: UnicodeText({ description: 'The name of the maker', examples: ['Spode'] }),
    licence: Type.Optional(Int64({ description: 'The license of the maker', examples: [3] }))
  }),
  cracks: Type.Array(Type.Object({
    found: Int64({ description: 'The time of discovery, in nanoseconds', examples: [1] })
  }), { maxItems: 2 })
}, { $id: 'Pot', description: 'A pot' })

const potsRoutes: FastifyPluginAsyncTypebox = async (app) => {
  app.addSchema(PotSchema)
  app.post('/pots', {
    schema: {
      operationId: 'createPot',
      tags: ['Pots'],
      summary: 'Keep a pot',
      body: PotSchema,
      response: { 200: PotSchema }
    },
    config: { errors: [POT_BROKEN] }
  }, async function createPot (request) {
    if (request.body.cracks.some(({ found }) => BigInt(found) === 0n)) throw new ApiError(POT_BROKEN)
    return { ...request.body, serial: BigInt(request.body.serial) + 0n }
  })
  app.get('/pots/:serial', {
    schema: {
      operationId: 'showPot',
      tags: ['Pots'],
      summary: 'Show a pot',
      params: Type.Object({
        serial: Int64Text({ description: 'The number on the bottom of the pot', examples: [7] })
      }),
      querystring: Type.Object({
        cracks: Type.Optional(LimitText({ description: 'The number of cracks to return', examples: [1] }))
      }),
      response: {
        200: Type.Object({
          serial: Int64({ description: 'The number', examples: [7] })
        }, { description: 'A pot' })
      }
    }
  }, async function showPot (request) {
    return { serial: BigInt(request.params.serial) }
  })
}

async function startPots (t: Test) {
  const { app, as, listen } = await startApp(t, {}, async (guarded) => { await guarded.register(potsRoutes) })
  const { authorization } = await as('alice')
  const create = (payload: string) => app.inject({
    method: 'POST', url: '/pots', headers: { authorization, 'content-type': 'application/json' }, payload
  })
  const show = (path: string) => app.inject({ url: `/pots/${path}`, headers: { authorization } })
  return { app, create, show, listen, token: authorization.replace('Bearer ', '') }
}

const good = '{"serial":9007199254740993,"glazed":true,"height":20,"colour":"red",' +
  '"maker":{"name":"Spode","licence":9223372036854775807},' +
  '"cracks":[{"found":1700000000000000001},{"found":5}],"shelf":-9223372036854775808}'
const int64 = 'from -9223372036854775808 to 9223372036854775807'

t.test('every 64-bit integer keeps its exact value, in any field and at any depth', async (t) => {
  const { create, show } = await startPots(t)
  t.equal((await create(good)).body, good)
  t.equal((await show('9007199254740993')).body, '{"serial":9007199254740993}')
  // These bodies have only short integers. The second body writes 7 as 70e-1.
  const small = good.replaceAll(/\d{16,}/g, '7')
  t.equal((await create(small.replace('{', '{"other":0.5,'))).body, small)
  t.equal((await create(small.replace('7', '70e-1'))).body, small)
})

t.test('the message names the field and its type', async (t) => {
  const { create, show } = await startPots(t)
  const object = 'with serial, shelf (optional), glazed, height, colour, maker, cracks'
  const rejected: Array<[from: string, to: string, number: number, message: string]> = [
    [good, '[]', 40010, `The body must be a JSON object ${object}.`],
    ['9007199254740993', '9223372036854775808', 40013, `serial must be ${int64}.`],
    ['9007199254740993', '9007199254740993.5', 40012, `serial must be an integer ${int64}.`],
    ['"shelf":-9223372036854775808', '"shelf":null', 40012, `shelf must be an integer ${int64}.`],
    ['"glazed":true', '"glazed":"x"', 40012, 'glazed is not valid: Expected boolean.'],
    ['"glazed":true,', '', 40011, 'glazed is missing.'],
    [
      '"height":20', '"height":-1', 40012,
      'height is not valid: Expected integer to be greater or equal to 1.'
    ],
    ['"height":20', '"height":20.00000000000000000001', 40012, 'height is not valid: Expected integer.'],
    ['"red"', '"blue"', 40012, 'colour is not valid: Expected union value.'],
    ['{"name":"Spode","licence":9223372036854775807}', '5', 40012, 'maker is not valid: Expected object.'],
    [
      '"name":"Spode",', '', 40011,
      'maker.name is missing: expected a string of Unicode characters without U+0000.'
    ],
    ['9223372036854775807', '-9223372036854775809', 40013, `maker.licence must be ${int64}.`],
    ['{"found":5}', '{"found":1e19}', 40013, `cracks.1.found must be ${int64}.`],
    [
      '{"found":5}', '{"found":5},{"found":6}', 40012,
      'cracks is not valid: Expected array length to be less or equal to 2.'
    ],
    ['{"found":5}', '{"found":0}', 40997, 'The pot is broken.']
  ]
  for (const [from, to, number, message] of rejected) {
    isError(t, await create(good.replace(from, to)), number, message, to)
  }
  isError(t, await show('1.5'), 40015, `The serial in the path must be a decimal integer ${int64}.`)
  isError(t, await show('1?cracks=-1'), 40016,
    'cracks must be a decimal integer from 0 to 2147483647, given once.')
})

t.test('two errors cannot have the same number', async (t) => {
  t.throws(() =>
    defineErrors({ POT_BROKEN: { number: errors.INTERNAL.number, message: 'The pot is broken.' } }),
  { message: 'POT_BROKEN: 50001 is taken' })
})

t.test('the document describes the domain and lists its errors', async (t) => {
  const { app } = await startPots(t)
  const document = (await app.inject('/openapi.json')).json()
  t.strictSame(Object.keys(document.paths), ['/pots', '/pots/{serial}'])
  const { description } = document.tags.find(({ name }: { name: string }) => name === 'Errors')
  t.match(description, '| 40997 | POT\\_BROKEN | The pot is broken. | no |')
  const responses = document.paths['/pots'].post.responses
  t.match(responses[409].content['application/json'].examples,
    { POT_BROKEN: { value: { error: 40997, message: 'The pot is broken.' } } })
  t.match(responses[400].content['application/json'].examples.INT64_OUT_OF_RANGE.value, { error: 40013 })
  t.match(responses[200].content['application/json'].example,
    {
      serial: 7,
      shelf: 1,
      glazed: true,
      height: 20,
      colour: 'red',
      maker: { name: 'Spode', licence: 3 },
      cracks: [{ found: 1 }]
    })
  t.match(document.components.schemas.Pot.properties.maker.properties.licence,
    { type: 'integer', format: 'int64' })
})

t.test('a client generated from the document creates and reads a pot', async (t) => {
  const { app, listen, token } = await startPots(t)
  const { operations, createClient } = await generateClient(t, (await app.inject('/openapi.json')).body)
  const client = createClient({ baseUrl: await listen(), auth: token, bodySerializer: exactIntegers })
  const body = {
    serial: 2n ** 53n + 1n,
    glazed: false,
    height: 5,
    colour: 'green',
    maker: { name: 'Spode' },
    cracks: [{ found: 2n ** 62n + 1n }]
  }
  const { response } = await operations.createPot({ client, body, parseAs: 'stream' })
  t.equal(await new Response(response.body).text(), exactIntegers(body))
  t.match((await operations.createPot({ client, body: { ...body, height: 301 } })).error,
    { error: 40012, message: 'height is not valid: Expected integer to be less or equal to 300.' })
  t.match((await operations.showPot({ client, path: { serial: 5n } })).data, { serial: 5n })
})
