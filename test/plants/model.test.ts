import fc from 'fast-check'
import type { LightMyRequestResponse } from 'fastify'
import t from 'tap'
import { anyText } from '../support/any-text.ts'
import { startApp } from '../support/app.ts'
import { expectOnly } from '../system/fuzz/checks.ts'
import {
  create, cursorAt, largest, list, remove, smallest, type Plants, type Verdict
} from '../system/fuzz/oracle.ts'

// Sends random sequences of requests to the service and to the fuzzer's oracle, and compares the responses.
// A failed run prints its seed. MODEL_RUNS sets the number of sequences.
const numRuns = Number(process.env.MODEL_RUNS ?? 10)
// The URL of a migrated database. If the variable is not set, the test creates a database.
const { MODEL_DATABASE_URL: url } = process.env
const environment: Record<string, string> = url === undefined ? {} : { DATABASE_URL: url }

type Model = Map<string, Plants>
type Client = Awaited<ReturnType<Awaited<ReturnType<typeof startApp>>['as']>>
type Clients = Map<string, Client>

const users = ['alice', 'bob', 'Ægir\'s "ünïcode" 🌱']

const edges = [
  smallest, smallest + 1n, -(2n ** 53n) - 1n, -(2n ** 53n), -1n, 0n, 1n, 2n ** 53n - 1n, 2n ** 53n,
  2n ** 53n + 1n, 2n ** 53n + 2n, 10n ** 18n, largest - 1n, largest
]
const id = fc.oneof(
  { weight: 3, arbitrary: fc.constantFrom(...edges) },
  fc.bigInt({ min: -3n, max: 3n }),
  fc.bigInt({ min: smallest, max: largest })
)
const beyond = fc.oneof(
  fc.constantFrom(smallest - 1n, largest + 1n, 2n ** 64n, -(2n ** 64n)),
  fc.bigInt({ min: largest + 1n, max: 10n ** 400n }),
  fc.bigInt({ min: -(10n ** 400n), max: smallest - 1n })
)
const user = fc.constantFrom(...users)

/** Each function writes an integer in another JSON notation, such as 1.0 or 10e-1. */
const spellings: Array<(digits: string, sign: string, zeros: number) => string> = [
  (digits, sign) => `${sign}${digits}`,
  (digits, sign, zeros) => `${sign}${digits}.${'0'.repeat(zeros + 1)}`,
  (digits, sign, zeros) => `${sign}${digits}e${'0'.repeat(zeros + 1)}`,
  (digits, sign) => `${sign}${digits}.0E+0`,
  (digits, sign, zeros) => `${sign}${digits}${digits === '0' ? '' : '0'.repeat(zeros)}e-${zeros}`,
  (digits, sign) => `${sign}${digits[0]}.${digits.slice(1)}0e${digits.length - 1}`,
  (digits, sign) => `${sign}0.${digits}E+${digits.length}`,
  (digits, sign, zeros) => `${sign}0.${'0'.repeat(zeros)}${digits}e${digits.length + zeros}`
]
const spelling = fc.tuple(fc.constantFrom(...spellings), fc.nat(30)).map(([write, zeros]) =>
  (value: bigint) => write(String(value < 0n ? -value : value), value < 0n ? '-' : '', zeros))

const escaped = (value: string) => {
  const escapes = value.split('').map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
  return `"${escapes.join('')}"`
}
const quoting = fc.constantFrom(JSON.stringify, escaped)
const other = fc.constantFrom(null, true, 0, 1.5, [], ['n'], {})

function expectVerdict ({ statusCode, headers, body }: LightMyRequestResponse, verdict: Verdict): void {
  expectOnly([{ status: statusCode, headers: headers as Record<string, string>, body }], verdict)
}

/** Returns a command that sends one request for a user, with the verdict of the oracle. */
const command = (
  user: string, text: string, send: (client: Client) => Promise<LightMyRequestResponse>,
  predict: (plants: Plants) => Verdict
): fc.AsyncCommand<Model, Clients> => ({
  check: () => true,
  toString: () => `${user}: ${text}`,
  run: async (model, clients) =>
    expectVerdict(await send(clients.get(user) as Client), predict(model.get(user) as Plants))
})

const predictCreate = (body: string) => (plants: Plants) => create(plants, {
  contentType: 'application/json', contentEncoding: undefined, body: Buffer.from(body), query: undefined
})

const mostlyText = fc.oneof({ weight: 9, arbitrary: anyText }, other)
const optionalTag = fc.option(mostlyText, { nil: undefined, freq: 2 })
const anyId = fc.oneof({ weight: 9, arbitrary: id }, beyond)

const creates = fc.tuple(user, anyId, spelling, mostlyText, optionalTag, quoting, fc.nat(5), fc.boolean())
  .map(([user, id, spell, name, tag, quote, order, twice]) => {
    const write = (value: unknown) => typeof value === 'string' ? quote(value) : JSON.stringify(value)
    const fields = [`${quote('id')}:${spell(id)}`, `${quote('name')}:${write(name)}`]
    if (tag !== undefined) fields.push(`"tag":${write(tag)}`)
    fields.push(...fields.splice(0, order % fields.length))
    const body = `{${twice ? '"id":true,"name":5,"x":{"id":5},' : ''}${fields.join(',')}}`
    return command(user, `create ${body}`, (client) => client.create(body), predictCreate(body))
  })

const deletes = fc.tuple(user, anyId, fc.option(spelling, { freq: 2 })).map(([user, id, spell]) => {
  const path = encodeURIComponent(spell?.(id) ?? String(id))
  return command(user, `delete ${path}`, (client) => client.delete(path),
    (plants) => remove(plants, path, undefined))
})

const limit = fc.option(fc.oneof(fc.nat(5), fc.constantFrom(2147483647)))
const lists = fc.tuple(user, limit, fc.option(id)).map(([user, limit, start]) => {
  const after = start === null ? undefined : cursorAt(start)
  const parameters = Object.entries({ limit, after }).filter(([, value]) => value != null)
  const query = parameters.map(([name, value]) => `${name}=${value}`).join('&')
  return command(user, `list ${query}`, (client) => client.list(`?${query}`), (plants) => list(plants, query))
})

t.test('the service agrees with the model', async (t) => {
  const { as } = await startApp(t, environment)
  let run = 0
  const sequences = fc.commands([creates, creates, creates, deletes, deletes, lists],
    { maxCommands: 50, size: 'max' })
  await fc.assert(fc.asyncProperty(sequences, async (sequence) => {
    run++
    const clients: Clients = new Map()
    for (const user of users) clients.set(user, await as(`${user} ${run}`))
    const model: Model = new Map(users.map((user) => [user, new Map()]))
    await fc.asyncModelRun(() => ({ model, real: clients }), sequence)
    for (const [user, plants] of model) {
      expectVerdict(await (clients.get(user) as Client).list(), list(plants, undefined))
    }
  }), { numRuns })
  t.pass(`${run} sequences`)
})
