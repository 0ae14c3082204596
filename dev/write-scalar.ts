// Writes src/api-docs/scalar.js.gz, the script of the reference page: npm run scalar
import { readFile, writeFile } from 'node:fs/promises'
import { runInNewContext } from 'node:vm'
import { gzipSync } from 'node:zlib'

/** Returns Scalar's browser script, which its package contains as a string literal, after its license. */
export async function readScalar (): Promise<string> {
  const module = new URL(import.meta.resolve('@scalar/fastify-api-reference'))
  const license = await readFile(new URL('../LICENSE', module), 'utf8')
  const literal = /^var standalone_default = (".*");$/m.exec(await readFile(module, 'utf8'))?.[1]
  if (literal === undefined) throw new Error('the package contains no script')
  return `/*!\n@scalar/api-reference\n\n${license.trim()}\n*/\n${runInNewContext(literal)}`
}

if (import.meta.main) {
  await writeFile('src/api-docs/scalar.js.gz', gzipSync(await readScalar(), { level: 9 }))
}
