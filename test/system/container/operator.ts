// Runs the commands of the operator's documents as an operator would.
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Test } from 'tap'
import { buildImage, findImage, openProject, root } from './support.ts'

/** Maps the heading of each section of a document to the shell blocks in the section. */
async function blocksOf (document: string) {
  const text = await readFile(join(root, 'docs', `${document}.md`), 'utf8')
  return Object.fromEntries(text.split(/^##+ /m).slice(1).map((section) => {
    const [heading = ''] = section.split('\n', 1)
    return [heading, [...section.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, lines]) => lines as string)]
  }))
}
export const runbook = await blocksOf('runbook')
export const manual = { ...await blocksOf('operating'), ...await blocksOf('data'), ...runbook }

/** Opens a Compose project with a database image that has pg_dump 18. */
export async function openOperator (t: Test, ...overlays: string[]) {
  await buildImage()
  const folder = t.testdir()
  // A local image named postgres:18 may lack pg_dump 18.
  const database = await findImage('postgres:18', 'pg_dump --version | grep -q " 18"')
  const override = join(folder, 'database.yml')
  const services = overlays.filter((overlay) => ['archive', 'backup'].includes(overlay))
  const images = ['database', ...services].map((service) => `${service}: { image: "${database}" }`)
  await writeFile(override, `services: { ${images.join(', ')} }`)
  const project = await openProject(t, ...overlays)
  project.env.COMPOSE_FILE = `${project.env.COMPOSE_FILE}:${override}`
  // An instance may stop at once, because the tests send no load.
  project.env.DRAIN_DELAY = '0'
  return {
    project,
    database,
    folder,
    ready: project.ready,
    /** Runs a block of a section of a document, with `folder` as the working directory. */
    follow: (section: string, environment?: NodeJS.ProcessEnv, block = 0) => {
      const lines = manual[section]?.[block]
      if (lines === undefined) throw new Error(`no document has a block ${block} in "${section}"`)
      return project.sh(lines, environment, folder)
    },
    plants: () => project.sql('select string_agg(name, \',\' order by id) from plants'),
    keep: (id: number, name: string) =>
      project.sql(`insert into plants (owner, id, name) values ('alice', ${id}, '${name}')`)
  }
}
