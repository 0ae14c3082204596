import fc from 'fast-check'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { cursorAt, linkTo } from '../support/plants.ts'

// Sends random sequences of requests to the service and to a model, and compares the responses. A failed run
// prints its seed. MODEL_RUNS sets the number of sequences.
const numRuns = Number(process.env.MODEL_RUNS ?? 20)
// The URL of a migrated database. If the variable is not set, the test creates a database.
const { MODEL_DATABASE_URL: url } = process.env
const environment: Record<string, string> = url === undefined ? {} : { DATABASE_URL: url }

interface Plant { name: string, tag?: string }
type Model = Map<string, Map<bigint, Plant>>
type Client = Awaited<ReturnType<Awaited<ReturnType<typeof startApp>>['as']>>
type Clients = Map<string, Client>
type Command = fc.AsyncCommand<Model, Clients>

const users = ['alice', 'bob', 'Ægir\'s "ünïcode" 🌱']
const [smallest, largest] = [-(2n ** 63n), 2n ** 63n - 1n]

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
// Some of these texts contain lone surrogates or U+0000. The service rejects such texts.
const text = fc.oneof(fc.string({ unit: 'binary' }), fc.string({ unit: 'grapheme' }))
const isText = (value: unknown) => typeof value === 'string' && value.isWellFormed() && !value.includes('\0')

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

const sorted = (plants: Map<bigint, Plant>) =>
  [...plants].sort(([a], [b]) => a < b ? -1 : 1).map(([, plant]) => plant)
const plantsOf = (model: Model, user: string) => model.get(user) as Map<bigint, Plant>
const clientOf = (clients: Clients, user: string) => clients.get(user) as Client

function expectError (actual: { statusCode: number, body: string }, number: number): void {
  const { error, message, ...rest } = JSON.parse(actual.body)
  const isExpected = actual.statusCode === Math.floor(number / 100) && error === number &&
    typeof message === 'string' && Object.keys(rest).length === 0
  if (!isExpected) {
    throw new Error(`expected ${number}, got ${actual.statusCode} ${actual.body}`)
  }
}

function expectBody (actual: { statusCode: number, body: string }, status: number, body: unknown): void {
  const expected = body === undefined ? '' : JSON.stringify(body)
  if (actual.statusCode === status && actual.body === expected) return
  throw new Error(`expected ${status} ${expected}, got ${actual.statusCode} ${actual.body}`)
}

const mostlyText = fc.oneof({ weight: 9, arbitrary: text }, other)
const optionalTag = fc.option(mostlyText, { nil: undefined, freq: 2 })

const create = fc.tuple(user, id, spelling, mostlyText, optionalTag, quoting, fc.nat(5), fc.boolean())
  .map(([user, id, spell, name, tag, quote, order, twice]): Command => {
    const write = (value: unknown) => typeof value === 'string' ? quote(value) : JSON.stringify(value)
    const fields = [`${quote('id')}:${spell(id)}`, `${quote('name')}:${write(name)}`]
    if (tag !== undefined) fields.push(`"tag":${write(tag)}`)
    fields.push(...fields.splice(0, order % fields.length))
    const body = `{${twice ? '"id":true,"name":5,"x":{"id":5},' : ''}${fields.join(',')}}`
    return {
      check: () => true,
      toString: () => `create for ${user} ${body}`,
      run: async (model, clients) => {
        const plants = plantsOf(model, user)
        const response = await clientOf(clients, user).create(body)
        if (!isText(name) || (tag !== undefined && !isText(tag))) return expectError(response, 40012)
        if (plants.has(id)) return expectError(response, 40014)
        const plant = { name, ...tag !== undefined && { tag } } as Plant
        plants.set(id, plant)
        expectBody(response, 200, plant)
      }
    }
  })

const createBeyond = fc.tuple(user, beyond, spelling).map(([user, id, spell]): Command => ({
  check: () => true,
  toString: () => `create for ${user} ${spell(id)}`,
  run: async (_model, clients) => {
    expectError(await clientOf(clients, user).create(`{"id":${spell(id)},"name":"n"}`), 40013)
  }
}))

const someSpellings = fc.array(spelling, { minLength: 2, maxLength: 6 })

const race = fc.tuple(user, id, someSpellings).map(([user, id, spells]): Command => ({
  check: (model) => !plantsOf(model, user).has(id),
  toString: () => `create for ${user} ${id} ${spells.length} times at once`,
  run: async (model, clients) => {
    const client = clientOf(clients, user)
    const bodies = spells.map((spell, index) => `{"id":${spell(id)},"name":"${index}"}`)
    const responses = await Promise.all(bodies.map((body) => client.create(body)))
    const winner = responses.findIndex(({ statusCode }) => statusCode === 200)
    for (const [index, response] of responses.entries()) {
      if (index === winner) expectBody(response, 200, { name: String(index) })
      else expectError(response, 40014)
    }
    plantsOf(model, user).set(id, { name: String(winner) })
  }
}))

const remove = fc.tuple(user, id).map(([user, id]): Command => ({
  check: () => true,
  toString: () => `delete for ${user} ${id}`,
  run: async (model, clients) => {
    const response = await clientOf(clients, user).delete(id)
    if (plantsOf(model, user).delete(id)) expectBody(response, 204, undefined)
    else expectError(response, 40402)
  }
}))

const removeMisspelt = fc.tuple(user, fc.oneof(id, beyond), spelling).map(([user, id, spell]): Command => {
  const misspelt = spell(id)
  const isCanonical = misspelt === String(id) && id >= smallest && id <= largest
  return {
    check: () => !isCanonical,
    toString: () => `delete for ${user} ${misspelt}`,
    run: async (_model, clients) => {
      expectError(await clientOf(clients, user).delete(encodeURIComponent(misspelt)), 40015)
    }
  }
})

const optionalLimit = fc.option(fc.oneof(fc.nat(5), fc.constantFrom(2147483647)), { nil: undefined })

const optionalStart = fc.option(id, { nil: undefined })

const list = fc.tuple(user, optionalLimit, optionalStart).map(([user, limit = Infinity, start]): Command => ({
  check: () => true,
  toString: () => `list for ${user} ${limit} from ${start}`,
  run: async (model, clients) => {
    const parameters = [...Number.isFinite(limit) ? [`limit=${limit}`] : [],
      ...start === undefined ? [] : [`after=${cursorAt(start)}`]]
    const response = await clientOf(clients, user).list(`?${parameters.join('&')}`)
    const ids = [...plantsOf(model, user).keys()].filter((id) => id >= (start ?? smallest))
      .sort((a, b) => a < b ? -1 : 1)
    expectBody(response, 200, ids.slice(0, limit).map((id) => plantsOf(model, user).get(id)))
    const next = limit === 0 ? undefined : ids[limit]
    const link = next === undefined ? undefined : linkTo(limit, next)
    if (response.headers.link !== link) throw new Error(`expected ${link}, got ${response.headers.link}`)
  }
}))

t.test('the service agrees with the model', async (t) => {
  const { as } = await startApp(t, environment)
  let run = 0
  const commands = [create, create, create, createBeyond, race, remove, remove, removeMisspelt, list]
  const sequences = fc.commands(commands, { maxCommands: 50, size: 'max' })
  await fc.assert(fc.asyncProperty(sequences, async (sequence) => {
    run++
    const clients: Clients = new Map()
    for (const user of users) clients.set(user, await as(`${user} ${run}`))
    const model: Model = new Map(users.map((user) => [user, new Map()]))
    await fc.asyncModelRun(() => ({ model, real: clients }), sequence)
    for (const user of users) {
      expectBody(await clientOf(clients, user).list(), 200, sorted(plantsOf(model, user)))
    }
  }), { numRuns })
  t.pass(`${run} sequences`)
})

t.test('all spellings of an integer are the same id, and a fraction is rejected', async (t) => {
  const { as } = await startApp(t, environment)
  const alice = await as('alice')
  await fc.assert(fc.asyncProperty(id, spelling, spelling, async (id, first, second) => {
    expectBody(await alice.create(`{"id":${first(id)},"name":"n"}`), 200, { name: 'n' })
    expectError(await alice.create(`{"id":${second(id)},"name":"n"}`), 40014)
    expectBody(await alice.delete(id), 204, undefined)
  }), { numRuns: 4 * numRuns })
  const fractions = fc.stringMatching(/^[0-9]{0,30}[1-9][0-9]{0,5}$/)
  await fc.assert(fc.asyncProperty(id, fractions, async (id, fraction) => {
    expectError(await alice.create(`{"id":${id}.${fraction},"name":"n"}`), 40012)
    if (id === 0n) return
    expectError(await alice.create(`{"id":${id}${fraction}e-${fraction.length},"name":"n"}`), 40012)
  }), { numRuns: 2 * numRuns })
  t.same((await alice.list()).json(), [])
})
