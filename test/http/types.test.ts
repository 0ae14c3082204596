import { FormatRegistry, Type, type TSchema } from '@sinclair/typebox'
import t from 'tap'
import { Int64 } from '../../src/http/types.ts'
import { startApp } from '../support/app.ts'
import { isRefusal } from '../support/refusal.ts'

FormatRegistry.Set('even', (text) => text.length % 2 === 0)
const id = () => Int64({ description: 'an id' })
const ids = 'an integer from -9223372036854775808 to 9223372036854775807'
const [whole, real] = ['9007199254740991', '1.7976931348623157e+308']

/** Of each schema for `it`: what it takes, and what it refuses with which words. */
const cases: Array<[schema: TSchema, taken: string[], refused: string[], words: string]> = [
  [Type.Boolean(), ['true', 'false'], ['0', '"true"', 'null'], 'true or false'],
  [Type.Null(), ['null'], ['0', '""', '{}'], 'null'],
  [Type.Literal('x'), ['"x"'], ['"y"', '1'], '"x"'],
  [Type.Union([Type.Literal(1), Type.Literal(2), Type.Null()]), ['1', '2.0', 'null'], ['3', '"1"'], '1, 2 or null'],
  [Type.Union([id(), Type.String()]), ['1', '"x"'], ['true', '1.5'], `${ids} or a string`],
  [Type.Integer(), ['0', whole, `-${whole}`, '1.0', '1e3'], ['1.5', '9007199254740992', '9007199254740993', '1e15000', '1.00000000000000000001'], `an integer from -${whole} to ${whole}`],
  [Type.Integer({ minimum: 0, maximum: 2 ** 60 }), ['0', '5'], ['-1', '9007199254740993'], `an integer from 0 to ${whole}`],
  [Type.Integer({ exclusiveMinimum: 0, multipleOf: 5 }), ['5', '10'], ['0', '6'], `an integer above 0 and at most ${whole}, a multiple of 5`],
  [Type.Number(), ['0', '-1.5', '1e300', '9007199254740993', '9007199254740993.5'], ['1e400', '"1"'], `a number from -${real} to ${real}`],
  [Type.Number({ minimum: 0.5, exclusiveMaximum: 2 }), ['0.5', '1.9'], ['0.4', '2'], 'a number of at least 0.5 and below 2'],
  [Type.String(), ['""', '"x"'], ['1', 'null'], 'a string'],
  [Type.String({ minLength: 2 }), ['"xy"'], ['"x"'], 'a string of at least 2 UTF-16 code units'],
  [Type.String({ maxLength: 1 }), ['"x"'], ['"xy"', '"😀"'], 'a string of at most 1 UTF-16 code unit'],
  [Type.String({ minLength: 1, maxLength: 2, pattern: '^a' }), ['"a"', '"ab"'], ['""', '"b"', '"abc"'], 'a string of 1 to 2 UTF-16 code units that matches ^a'],
  [Type.String({ format: 'even' }), ['"xx"'], ['"x"'], 'a string in the format even'],
  [Type.Array(Type.Null()), ['[]', '[null]'], ['{}', 'null'], 'an array'],
  [Type.Array(Type.Number(), { minItems: 1, uniqueItems: true }), ['[1,2]'], ['[]', '[1,1]'], 'an array of at least 1 item, no two the same'],
  [Type.Object({}), ['{}', '{"x":1}'], ['[]', '1'], 'an object'],
  [Type.Object({ a: Type.Null(), b: Type.Null() }), ['{"a":null,"b":null}'], ['1'], 'an object with a and b'],
  [Type.Object({ a: Type.Optional(Type.Null()) }), ['{}'], ['1'], 'an object with optionally a'],
  [Type.Record(Type.String(), id()), ['{}', '{"x":1,"y":9007199254740993}'], ['[]'], 'as the document of the API describes it'],
  [Type.Tuple([id(), Type.Boolean()]), ['[9007199254740993,true]'], ['[1]', '{}'], 'as the document of the API describes it'],
  [Type.Tuple([]), ['[]'], ['{}'], 'as the document of the API describes it'],
  [Type.Array(Type.Any()), ['[1]'], ['{}'], 'an array'],
  [Type.Intersect([Type.Object({ a: id() }), Type.Object({ b: id() })]), ['{"a":9007199254740993,"b":-9007199254740993}'], [], '']
]

const { app, as } = await startApp(t, {}, async (guarded) => {
  for (const [index, [it]] of cases.entries()) guarded.post(`/kinds/${index}`, { schema: { body: Type.Object({ it }) } }, async () => 'taken')
  guarded.post('/closed', { schema: { body: Type.Object({ pot: Type.Object({}, { additionalProperties: false }) }) } }, async () => 'taken')
  guarded.post('/list', { schema: { body: Type.Array(Type.Object({ 'a/b~c': id() })) } }, async () => 'taken')
})
const { authorization } = await as('alice')
const send = (url: string, payload: string) =>
  app.inject({ method: 'POST', url, headers: { authorization, 'content-type': 'application/json' }, payload })

for (const [index, [schema, taken, refused, words]] of cases.entries()) {
  t.test(JSON.stringify(schema), async (t) => {
    for (const value of taken) t.equal((await send(`/kinds/${index}`, `{"it":${value}}`)).body, 'taken', value)
    for (const value of refused) isRefusal(t, await send(`/kinds/${index}`, `{"it":${value}}`), 40012, `it must be ${words}.`, value)
  })
}

t.test('fields inside a value are named by where they are', async (t) => {
  isRefusal(t, await send('/closed', '{"pot":{"lid":1}}'), 40012, 'pot.lid must be left out.')
  isRefusal(t, await send('/list', '[{"a/b~c":1},{}]'), 40011, `[1].a/b~c must be ${ids}.`)
  isRefusal(t, await send('/list', '5'), 40012, 'The body must be an array.')
})
