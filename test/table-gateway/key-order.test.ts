// Tests that the program orders keys like PostgreSQL. Otherwise, an import and the service could deadlock.
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { byKey } from '../../src/table-gateway/table.ts'
import { createDatabase, sql } from '../support/database.ts'

// Most of these characters have another order in UTF-16 than in UTF-8.
const characters = ['a', 'b', '\u00E9', '\uD7FF', '\uFF21', '\u{1F600}', '\u{10FFFF}']
const id = fc.oneof(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), fc.constant(2n ** 53n + 1n))
const key = fc.record({ user: fc.string({ unit: fc.constantFrom(...characters) }), id: id.map(String) })
const keys = fc.uniqueArray(key, { selector: ({ user, id }) => `${id} ${user}`, minLength: 1, maxLength: 50 })

t.test('keys have the order of the collation "C" and of bigint', async (t) => {
  const url = await createDatabase(t)
  await fc.assert(fc.asyncProperty(keys, async (keys) => {
    const [row] = await sql(url, `select array_agg(owner order by owner collate "C", id) as users,
        array_agg(id::text order by owner collate "C", id) as ids
      from unnest($1::text[], $2::bigint[]) as key (owner, id)`,
    [keys.map(({ user }) => user), keys.map(({ id }) => id)])
    const sorted = keys.toSorted(byKey)
    const expected = { users: sorted.map(({ user }) => user), ids: sorted.map(({ id }) => id) }
    assert.deepEqual(expected, row)
  }), {
    examples: [
      [['\uFF21', '\u{1F600}'].map((user) => ({ user, id: '1' }))],
      [[2n ** 53n + 1n, 2n ** 53n].map((id) => ({ user: 'a', id: String(id) }))]
    ]
  })
})
