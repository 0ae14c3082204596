// Prints 60 random comments of the code and 30 random sentences of the documents, for a newcomer to judge:
// node dev/sample-prose.ts --seed 1
import { hash } from 'node:crypto'
import { glob, readFile } from 'node:fs/promises'
import { parseArgs } from 'node:util'
import ts from 'typescript'

const { values: { seed } } = parseArgs({ options: { seed: { type: 'string', default: '1' } } })

/** Adjacent line comments count as one comment. */
function commentsOf (code: string): string[] {
  const source = ts.createSourceFile('code.ts', code, ts.ScriptTarget.Latest, true)
  const ranges = new Map<number, number>()
  function visit (node: ts.Node): void {
    if (ts.isJSDoc(node)) return
    const before = ts.getLeadingCommentRanges(code, node.pos) ?? []
    const after = ts.getTrailingCommentRanges(code, node.end) ?? []
    for (const { pos, end } of [...before, ...after]) ranges.set(pos, end)
    node.getChildren(source).forEach(visit)
  }
  visit(source)
  const comments: string[] = []
  let lastEnd = 0
  for (const [start, end] of [...ranges].sort(([one], [other]) => one - other)) {
    const isContinued = comments.length > 0 && /^\n *$/.test(code.slice(lastEnd, start))
    comments.push((isContinued ? `${comments.pop()}\n` : '') + code.slice(start, end))
    lastEnd = end
  }
  return comments.map(withoutMarks)
}

const sqlCommentsOf = (sql: string) => (sql.match(/(?:^ *-- .*\n)+/gm) ?? []).map(withoutMarks)

const withoutMarks = (comment: string) =>
  comment.replaceAll(/^ *(?:\/\*\*|\*(?!\/)|\/\/|--)|\*\/$/gm, '')

const sentencesOf = (text: string) => text
  .replaceAll(/^```[^]*?^```|^ *[|#!].*$|^ {4}.*$/gm, '\n\n')
  .split(/\n\n|^(?:[-*]|\d+\.) |(?<=[.!?:])\s+(?=[A-Z`[*])/m)

/** Draws texts of more than two words. The same seed always draws the same texts. */
async function draw (
  count: number, patterns: string[], textsOf: (text: string, file: string) => string[]
): Promise<string[]> {
  const all: string[] = []
  for await (const file of glob(patterns, { exclude: ['**/node_modules/**'] })) {
    const texts = textsOf(await readFile(file, 'utf8'), file)
      .map((text) => text.replaceAll(/\s+/g, ' ').trim())
    all.push(...texts.filter((text) => text.split(' ').length > 2).map((text) => `${file}: ${text}`))
  }
  const keys = new Map(all.map((text) => [text, hash('sha256', `${seed} ${text}`)]))
  return all.sort((one, other) => keys.get(one)! < keys.get(other)! ? -1 : 1).slice(0, count)
}

for (const line of [
  ...await draw(60, ['{src,dev,test,bench}/**/*.ts', 'migrations/*.sql'], (text, file) =>
    file.endsWith('.sql') ? sqlCommentsOf(text) : commentsOf(text)),
  ...await draw(30, ['*.md', 'docs/**/*.md'], sentencesOf)
]) console.log(line)
