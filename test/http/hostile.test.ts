import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { exchange } from '../support/raw.ts'
import { isRefusal } from '../support/refusal.ts'

// Each as large as a body may be, and made to cost a parser, a validator or a regular expression all it can.
const size = 1024 * 1024
const fill = (start: string, unit: string, end: string) => start + unit.repeat((size - start.length - end.length) / unit.length) + end
const list = (start: string, item: (index: number) => string, end: string) => {
  const items = []
  for (let [index, length] = [0, start.length + end.length]; length < size - 100; index++) length += (items[index] = item(index)).length + 1
  return start + items.join(',') + end
}
const notObject = [40010, 'The body must be a JSON object with id, name and optionally tag.'] as const
const tooComplex = [40017, 'The body must not have more than 1000 values.'] as const
const badId = [40012, 'id must be an integer from -9223372036854775808 to 9223372036854775807.'] as const
const badName = [40012, 'name must be a string of Unicode characters without U+0000.'] as const
const bigId = [40013, 'id must be from -9223372036854775808 to 9223372036854775807.'] as const
const notJson = [40008, 'The body is not valid JSON.'] as const

const bodies: Record<string, readonly [body: string, ...refusal: readonly [] | readonly [number: number, message: string]]> = {
  'arrays in arrays': ['['.repeat(size / 2) + ']'.repeat(size / 2), ...tooComplex],
  'arrays without an end': ['['.repeat(size), ...tooComplex],
  'objects in objects': [fill('', '{"a":', ''), ...tooComplex],
  'arrays in a field beside a large id': [`{"id":9007199254740993,"name":${'['.repeat(500_000)}${']'.repeat(500_000)}}`, ...tooComplex],
  'a forbidden key deep down': [`${'['.repeat(500_000)}{"__proto__":1}${']'.repeat(500_000)}`, ...tooComplex],
  'objects of as many shapes': [list('[', (index) => `{"k${index}":1}`, ']'), ...tooComplex],
  'as many keys': [list('{"id":1.0,', (index) => `"k${index}":1`, ',"name":"n"}'), ...tooComplex],
  'keys that look like sparse indexes': [list('{"id":1.0,', (index) => `"${index * 65536}":1`, ',"name":"n"}'), ...tooComplex],
  'as many ids': [fill('{"name":"n","id":1.0', ',"\\u0069\\u0064":1e0', '}'), ...tooComplex],
  'small numbers': [fill('[1', ',1', ']'), ...tooComplex],
  'numbers of 17 digits': [fill('{"id":1.0,"name":[1', ',2.2250738585072011e-308', ']}'), ...tooComplex],
  'an id of a million digits': [fill('{"id":', '9', ',"name":"n"}'), ...bigId],
  'an id of a million zeros': [fill('{"id":1', '0', ',"name":"n"}'), ...bigId],
  'an id of runs of zeros': [fill('{"id":1', '00000000001', ',"name":"n"}'), ...bigId],
  'an exponent of a million digits': [fill('{"id":1e', '9', ',"name":"n"}'), ...bigId],
  'a fraction of a million digits': [fill('{"id":0.', '9', ',"name":"n"}'), ...badId],
  'a fraction of a million zeros': [fill('{"name":"n","id":1.', '0', '1}'), ...badId],
  'a name that is a million digits': [fill('{"id":1.0,"name":', '7', '}'), ...badName],
  'a million colons after an id': [fill('{"id"', ':', ''), ...notJson],
  'a long text deep inside an id': [fill(`{"id":${'{"a":'.repeat(900)}"`, 'x', `"${'}'.repeat(900)},"name":"n"}`), ...badId],
  'a million spaces': [fill('{"id":1.0,"name":', ' ', '1}'), ...badName],
  'a forbidden key and a million spaces': [fill('{"id":1,"name":"n","x":{"__proto__"', ' ', ':1}}'), 40009, 'The body must not have a key "__proto__".'],
  'backslashes in a string without an end': [fill('{"id":1.0,"name":"', '\\\\', ''), ...notJson],
  'garbage after a million characters': [fill('{"id":1,"name":"', 'n', '"}x'), ...notJson],
  'a lone surrogate at the end': [fill('{"id":1.0,"name":"', 'n', '\\ud800"}'), ...badName],
  'a string for a body': [fill('"', 'n', '"'), ...notObject],
  'a fraction of zeros': [fill('{"name":"n","id":1.', '0', '}')],
  'escaped quotes': [fill('{"id":2.0,"name":"', '\\"', '"}')],
  backslashes: [fill('{"id":3.0,"name":"', '\\\\', '"}')],
  'groups of 15 digits': [fill('{"id":4,"name":"', '123456789012345 ', '"}')],
  brackets: [fill('{"id":5.0,"name":"', '[{,:', '"}')],
  'characters of four bytes': [`{"id":6.0,"name":"${'😀'.repeat(size / 4 - 10)}"}`]
}

const { as, url, listen } = await startApp(t)
const alice = await as('alice')
const address = await listen()

t.test('the most costly bodies are answered as the least', async (t) => {
  await alice.create({ id: 0, name: 'warm' })
  for (const [title, [body, ...refusal]] of Object.entries(bodies)) {
    const { user } = process.cpuUsage()
    const answer = await alice.create(body)
    const spent = process.cpuUsage({ user, system: 0 }).user / 1000
    if (refusal.length === 0) t.equal(answer.statusCode, 200, title)
    else isRefusal(t, answer, refusal[0], refusal[1], title)
    t.comment(`${title}: ${spent.toFixed(1)} ms`)
  }
  t.same(await sql(url, 'select id::int, char_length(name) as length from plants order by plants.id'), [
    { id: 0, length: 4 }, { id: 1, length: 1 }, { id: 2, length: 524278 }, { id: 3, length: 524278 }, { id: 4, length: 1048544 }, { id: 5, length: 1048556 }, { id: 6, length: 262134 }
  ])
})

t.test('others are served while such bodies arrive', async (t) => {
  const some = Object.entries(bodies).filter((_, index) => index % 3 === 0)
  await Promise.all(some.map(async ([title, [body]]) => {
    const bytes = Buffer.from(body)
    const beside = async () => {
      const listed = await fetch(`${address}/plants?limit=1`, { headers: { authorization: alice.authorization } })
      t.same(await listed.json(), [{ name: 'warm' }])
    }
    const [answer] = await exchange(address, [
      `POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${alice.authorization}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: ${bytes.length}\r\n\r\n`,
      bytes.subarray(0, -1), beside, bytes.subarray(-1)
    ])
    t.equal(answer?.status, 400, title)
  }))
})
