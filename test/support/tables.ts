import { glob, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { ownedTables } from '../../src/domains.ts'
import { createStatements } from '../../src/table-gateway/statements.ts'
import type { Table } from '../../src/table-gateway/table.ts'

/** Returns a row as a client creates it, with the examples of these fields. */
export const exampleOf = ({ fields, schema }: Table, id: number, some = fields): Record<string, unknown> =>
  Object.fromEntries([['id', id], ...some.map((field) => [field, schema.properties[field]?.examples[0]])])

/** Returns the sorted names of the service's statements, from the sources and from the tables. */
export async function findStatements (): Promise<string[]> {
  const root = join(import.meta.dirname, '../..')
  const files = glob('src/**/*.ts', { cwd: root })
  const sources = await Array.fromAsync(files, (file) => readFile(join(root, file), 'utf8'))
  const literal = sources.join().matchAll(/\b(?:name: '|preparedAs: `)([\w-]+)(?:',|-\$\{\w+\}`,)\s+text:/g)
  const built = ownedTables.flatMap((table) => {
    const { insert, ...others } = createStatements(table)
    return [insert(1), ...Object.values(others)].map(({ name }) => name)
  })
  return [...literal.map(([, name = '']) => name), ...built].sort()
}
