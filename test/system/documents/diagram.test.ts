// Compares the diagram of the README with the imports of src.
import { readdir, readFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import t from 'tap'

const root = join(import.meta.dirname, '../../..')
const read = (file: string) => readFile(join(root, file), 'utf8')

t.test('the diagram of the README shows the imports of src', async (t) => {
  const [, diagram = ''] = /^```mermaid\n(.*?)^```/ms.exec(await read('README.md')) ?? []
  const drawn = [...diagram.matchAll(/^ +(.*) --> (.*)/gm)].flatMap(([, left = '', right = '']) =>
    left.split(' & ').flatMap((from) => right.split(' & ').map((to) => `${from} ${to}`)))
    .filter((arrow) => arrow !== 'database PostgreSQL[(PostgreSQL)]')
  const parts = new Set(drawn.flatMap((arrow) => arrow.split(' ')))
  const imports = new Set<string>()
  for (const file of await readdir(join(root, 'src'), { recursive: true })) {
    const part = file.split('/', 1)[0] as string
    if (!file.endsWith('.ts') || !parts.has(part)) continue
    for (const [, path = ''] of (await read(`src/${file}`)).matchAll(/(?:from |import\()'(\..+?)'/g)) {
      const [top, imported = ''] = join('src', dirname(file), path).split('/')
      if (top === 'src' && imported !== part && parts.has(imported)) imports.add(`${part} ${imported}`)
    }
  }
  t.strictSame(drawn.filter((arrow) => !imports.has(arrow)), [], 'each arrow is an import')
  const leadsTo = (from: string, to: string): boolean => drawn.some((arrow) => {
    const [start, end = ''] = arrow.split(' ')
    return start === from && (end === to || leadsTo(end, to))
  })
  const missing = [...imports].filter((arrow) => !leadsTo(...arrow.split(' ') as [string, string]))
  t.strictSame(missing, [], 'each import is an arrow, or follows from several arrows')
  const entries = await readdir(join(root, 'src'), { withFileTypes: true })
  const folders = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name)
  t.strictSame(folders.filter((name) => !parts.has(name)), [], 'each folder is in the diagram')
})
