// Runs the commands of docs/runbook.md as an operator would.
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Test } from 'tap'
import { buildImage, findImage, openProject, root } from './support.ts'

const text = await readFile(join(root, 'docs/runbook.md'), 'utf8')

/** Maps the heading of each section to the shell blocks in the section. */
export const runbook = Object.fromEntries(text.split(/^## /m).slice(1).map((section) => {
  const [heading = ''] = section.split('\n', 1)
  return [heading, [...section.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, lines]) => lines as string)]
}))

/** Opens a Compose project with a database image that has pg_dump 18. */
export async function openOperator (t: Test, ...overlays: string[]) {
  await buildImage()
  const folder = t.testdir()
  // A local image named postgres:18 may lack pg_dump 18.
  const database = await findImage('postgres:18', 'pg_dump --version | grep -q " 18"')
  const override = join(folder, 'database.yml')
  const services = overlays.includes('backup') ? ['database', 'backup'] : ['database']
  const images = services.map((service) => `${service}: { image: "${database}" }`)
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
    /** Runs command lines of the runbook, with `folder` as the working directory. */
    follow: (lines: string | undefined, environment?: NodeJS.ProcessEnv) =>
      project.sh(lines as string, environment, folder),
    plants: () => project.sql('select string_agg(name, \',\' order by id) from plants'),
    keep: (id: number, name: string) =>
      project.sql(`insert into plants (owner, id, name) values ('alice', ${id}, '${name}')`)
  }
}
