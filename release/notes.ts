// Prints the release notes of a version: the section of CHANGELOG.md, and the licenses of the packages in the
// image. Usage: node release/notes.ts 1.1.0
import { readFile } from 'node:fs/promises'
import { readLicenses } from './licenses.ts'

const version = process.argv[2]
const [, ...sections] = (await readFile('CHANGELOG.md', 'utf8')).split(/^## /m)
const section = sections.find((text) => text.startsWith(`${version}\n`))
if (section === undefined) throw new Error(`CHANGELOG.md has no section ${version}`)
const packages = await readLicenses()
const byLicense = Object.entries(Object.groupBy(packages, ([, license]) => license ?? 'no license'))
  .map(([license, { length } = []]) => ({ license, length }))
  .toSorted((a, b) => b.length - a.length)
  .map(({ license, length }) => `${length} ${license}`)
console.log(section.slice(section.indexOf('\n')).trim())
console.log(`\nThe image contains ${packages.length} npm packages: ${byLicense.join(', ')}.`)
