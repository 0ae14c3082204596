import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import '../../src/app.ts'
import { catalogue } from '../../src/errors.ts'

t.test('docs/api.md lists every error number, and no other', async (t) => {
  const readme = await readFile(join(import.meta.dirname, '../../docs/api.md'), 'utf8')
  const listed = [...readme.matchAll(/^\| (\d{5}) \| (.*) \|$/gm)].map(([, number, message]) => `${number} ${message}`)
  t.same(listed, [...catalogue.values()].toSorted((a, b) => a.number - b.number).map(({ number, message }) => `${number} ${message}`))
})
