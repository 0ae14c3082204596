import { Type } from '@sinclair/typebox'
import t from 'tap'
import { Int64 } from '../../src/http/types.ts'
import { isError } from '../support/error-response.ts'
import { startApp } from '../support/app.ts'

const id = () => Int64({ description: 'an id' })

const { app, as } = await startApp(t, {}, async (guarded) => {
  const body = Type.Object({
    whole: Type.Optional(Type.Integer({ minimum: 0 })),
    real: Type.Optional(Type.Number()),
    flag: Type.Optional(Type.Boolean()),
    either: Type.Optional(Type.Union([id(), Type.String()])),
    byName: Type.Optional(Type.Record(Type.String(), id())),
    pot: Type.Optional(Type.Object({ lid: Type.Boolean() }, { additionalProperties: false }))
  })
  guarded.post('/types', { schema: { body } }, async () => 'accepted')
})
const { authorization } = await as('alice')
const send = (payload: string) =>
  app.inject({
    method: 'POST', url: '/types', headers: { authorization, 'content-type': 'application/json' }, payload
  })

t.test('the types of TypeBox check exact numbers too', async (t) => {
  const accepted = [
    '"whole":0', '"whole":9007199254740991', '"whole":1.0', '"whole":1e3', '"real":-1.5', '"real":1e300',
    '"flag":true',
    '"either":1', '"either":"x"', '"either":9007199254740993', '"byName":{}',
    '"byName":{"x":1,"y":9007199254740993}', '"pot":{"lid":true}'
  ]
  for (const field of accepted) t.equal((await send(`{${field}}`)).body, 'accepted', field)
})

t.test('the message for a type of TypeBox is that of the validator', async (t) => {
  const rejected: Record<string, string> = {
    '"whole":-1': 'whole is not valid: Expected integer to be greater or equal to 0.',
    '"whole":1.5': 'whole is not valid: Expected integer.',
    '"whole":9007199254740993': 'whole is not valid: Expected integer.',
    '"whole":1.00000000000000000001': 'whole is not valid: Expected integer.',
    '"real":1e400': 'real is not valid: Expected number.',
    '"flag":0': 'flag is not valid: Expected boolean.',
    '"either":true': 'either is not valid: Expected union value.',
    '"byName":{"x":1.5}': 'byName.x must be an integer from -9223372036854775808 to 9223372036854775807.',
    '"pot":{"lid":true,"hole":1}': 'pot.hole is not valid: Unexpected property.'
  }
  for (const [field, message] of Object.entries(rejected)) {
    isError(t, await send(`{${field}}`), 40012, message, field)
  }
  isError(t, await send('{"pot":{}}'), 40011, 'pot.lid is missing.')
})
