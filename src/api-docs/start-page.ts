// Renders the first screen of /docs. Browsers show this screen until they have loaded Scalar's script.
import { readFile } from 'node:fs/promises'

/** The parts of an OpenAPI document that the first screen shows. */
interface Document {
  info: { description: string }
  paths: Record<string, Record<string, { summary?: string }>>
}

export async function renderStartPage (document: object): Promise<Buffer> {
  const { info, paths } = document as Document
  const page = await readFile(new URL('docs.html', import.meta.url), 'utf8')
  const operations = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, { summary = '' }]) =>
      `<li><code>${method.toUpperCase()} ${escape(path)}</code> ${escape(summary)}</li>`))
  // Pass functions: in a replacement text, `$` would have a special meaning.
  return Buffer.from(page
    .replace('{{introduction}}', () => toHtml(info.description))
    .replace('{{operations}}', () => operations.join('\n')))
}

/** Knows only the Markdown of the introduction: paragraphs, code blocks without empty lines, and code. */
const toHtml = (markdown: string) => markdown.trim().split(/\n{2,}/).map((block) => {
  const [, code] = /^```\w+\n(.*)\n```$/s.exec(block) ?? []
  if (code !== undefined) return `<pre><code>${escape(code)}</code></pre>`
  return `<p>${escape(block).replaceAll(/`(.+?)`/g, '<code>$1</code>')}</p>`
}).join('\n')

const escape = (text: string) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')
