// Prints the release notes of a version from CHANGELOG.md. Usage: node release/notes.ts 1.1.0
import { readFile } from 'node:fs/promises'

const version = process.argv[2]
const [, ...sections] = (await readFile('CHANGELOG.md', 'utf8')).split(/^## /m)
const section = sections.find((text) => text.startsWith(`${version}\n`))
if (section === undefined) throw new Error(`CHANGELOG.md has no section ${version}`)
console.log(section.slice(section.indexOf('\n')).trim())
