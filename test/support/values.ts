import type { TObject } from '@sinclair/typebox'
import type { Test } from 'tap'
import type { startApp } from './app.ts'

/** The startup parameters of a database URL. A returned value must not depend on these settings. */
export const foreignSettings = `options=${encodeURIComponent('-c timezone=Asia/Tokyo -c datestyle=SQL,DMY')}`

const values = [
  '', ' x ', '1e3', 'infinity', '2026-02-30', '2026-02-30T00:00:00.000Z', '0000-01-01T00:00:00.000Z',
  '2026-05-01T08:30:00+16:00', '2026-05-01T08:30:00.123456789Z', 0.1, 1e300, -1, true, [], {}
]

/**
 * Tests each field of `schema`: the service rejects a value, or lists the value as the create returned it.
 * `text` is a field without a limit of its length.
 */
export async function testFields (
  t: Test, as: Awaited<ReturnType<typeof startApp>>['as'], { properties, required = [] }: TObject,
  text: string
): Promise<void> {
  const whole = Object.fromEntries(required.map((field) => [field, properties[field]?.examples[0]]))
  for (const [field, { examples }] of Object.entries(properties)) {
    t.ok(examples?.length > 0, `${field} has an example`)
    for (const value of new Set([...examples, ...values])) {
      const what = `${field} ${JSON.stringify(value)}`
      const user = await as(what)
      const created: string[] = []
      // Another statement reads a page with a long text.
      for (const length of [1, 300]) {
        const item = { ...whole, id: length, [text]: 'n'.repeat(length), [field]: value }
        const { statusCode, body } = await user.create(item)
        t.ok(statusCode === 200 || (statusCode === 400 && !examples.includes(value)), what)
        if (statusCode === 200) {
          created.push(body)
          t.match((await user.create(item)).json().message, /is already stored|is stored/, what)
        }
        t.equal((await user.list()).body, `[${created.join()}]`, what)
      }
    }
  }
}
