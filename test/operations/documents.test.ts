import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import '../../src/app.ts'
import { catalogue } from '../../src/errors.ts'

const read = (file: string) => readFile(join(import.meta.dirname, '../..', file), 'utf8')
const document = await read('docs/api.md')
const { paths, components } = JSON.parse(await read('openapi.json'))

t.test('docs/api.md lists every error number, and no other', async (t) => {
  const listed = [...document.matchAll(/^\| (\d{5}) \| (.*) \|$/gm)].map(([, number, message]) => `${number} ${message}`)
  t.same(listed, [...catalogue.values()].toSorted((a, b) => a.number - b.number).map(({ number, message }) => `${number} ${message}`))
})

t.test('docs/api.md has a row for every operation and for every field of what is sent', async (t) => {
  for (const [path, methods] of Object.entries<object>(paths)) {
    for (const method of Object.keys(methods)) {
      const example = `${method.toUpperCase()} ${path.replaceAll(/\{\w+\}/g, '\\d+')}`
      t.match(document, new RegExp(`^\\|.*\`${example}\\b`, 'm'), example)
    }
  }
  for (const field of Object.keys(components.schemas.NewPlant.properties)) t.match(document, new RegExp(`^\\| [^|]*\`${field}\``, 'm'), field)
})
