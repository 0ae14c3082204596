// Reads the command lines of docs/runbook.md.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

const text = readFileSync(join(import.meta.dirname, '../../../docs/runbook.md'), 'utf8')

/** Maps the heading of each section to the shell blocks in the section. */
export const runbook = Object.fromEntries(text.split(/^## /m).slice(1).map((section) => {
  const [heading = ''] = section.split('\n', 1)
  return [heading, [...section.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, lines]) => lines as string)]
}))
