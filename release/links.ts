// Replaces links of the documents in a folder whose files the folder lacks by links to the repository.
// Usage: node release/links.ts <folder> <URL of the repository's files at the released commit>
import { existsSync } from 'node:fs'
import { glob, readFile, writeFile } from 'node:fs/promises'
import { dirname, join, normalize } from 'node:path'

const [folder = '', url = ''] = process.argv.slice(2)
if (!/^https:\/\/.+/.test(url)) throw new Error(`expected a URL, got ${JSON.stringify(url)}`)

for await (const file of glob('**/*.md', { cwd: folder })) {
  const text = await readFile(join(folder, file), 'utf8')
  const linked = text.replaceAll(/\]\((?!https?:|#)([^)#]+)/g, (link, path: string) => {
    const target = normalize(join(dirname(file), path))
    return existsSync(join(folder, target)) ? link : `](${url}/${target}`
  })
  await writeFile(join(folder, file), linked)
}
