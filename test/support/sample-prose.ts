// Draws 60 comments of the code and 30 sentences of the documents, to read them as a newcomer does:
// node test/support/sample-prose.ts --seed 1
import { hash } from 'node:crypto'
import { glob, readFile } from 'node:fs/promises'
import { parseArgs } from 'node:util'

const { values: { seed } } = parseArgs({ options: { seed: { type: 'string', default: '1' } } })

const comment = /\/\*\*[^]*?\*\/|(?:^ *(?:\/\/|--) .*\n)+|(?<=\S +)\/\/ .*$/gm
const commentsOf = (text: string) => (text.match(comment) ?? [])
  .map((found) => found.replaceAll(/^ *(?:\/\*\*|\*(?!\/)|\/\/|--)|\*\/$/gm, ''))

const sentencesOf = (text: string) => text
  .replaceAll(/^```[^]*?^```|^ *[|#!].*$|^ {4}.*$/gm, '\n\n')
  .split(/\n\n|^(?:[-*]|\d+\.) |(?<=[.!?:])\s+(?=[A-Z`[*])/m)

/** Texts of more than two words, the same ones for the same seed. */
async function draw (
  count: number, patterns: string[], textsOf: (text: string) => string[]
): Promise<string[]> {
  const all: string[] = []
  for await (const file of glob(patterns)) {
    const texts = textsOf(await readFile(file, 'utf8')).map((text) => text.replaceAll(/\s+/g, ' ').trim())
    all.push(...texts.filter((text) => text.split(' ').length > 2).map((text) => `${file}: ${text}`))
  }
  const keys = new Map(all.map((text) => [text, hash('sha256', `${seed} ${text}`)]))
  return all.sort((one, other) => keys.get(one)! < keys.get(other)! ? -1 : 1).slice(0, count)
}

for (const line of [
  ...await draw(60, ['{src,test,bench}/**/*.ts', 'migrations/*.sql'], commentsOf),
  ...await draw(30, ['*.md', 'docs/**/*.md'], sentencesOf)
]) console.log(line)
