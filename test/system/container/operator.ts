// Runs the commands of docs/runbook.md as an operator would.
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Test } from 'tap'
import { buildImage, composeFiles, findImage, openProject, waitForStatus } from './support.ts'

/** Opens a Compose project with these overlays. */
export async function openOperator (t: Test, ...overlays: string[]) {
  await buildImage()
  const folder = t.testdir()
  // Check pg_dump: the local postgres:18 may have client programs of another version than the server.
  const database = await findImage('postgres:18', 'pg_dump --version | grep -q " 18"')
  const override = join(folder, 'database.yml')
  const services = overlays.includes('backup') ? ['database', 'backup'] : ['database']
  const images = services.map((service) => `${service}: { image: "${database}" }`)
  await writeFile(override, `services: { ${images.join(', ')} }`)
  const project = await openProject(t)
  project.env.COMPOSE_FILE = [...composeFiles(...overlays), override].join(':')
  // Without load, an instance may stop at once.
  project.env.DRAIN_DELAY = '0'

  return {
    project,
    database,
    folder,
    /** Runs command lines of the runbook in `folder`. */
    follow: (lines: string | undefined, environment?: NodeJS.ProcessEnv) =>
      project.sh(lines as string, environment, folder),
    plants: () => project.sql('select string_agg(name, \',\' order by id) from plants'),
    keep: (id: number, name: string) =>
      project.sql(`insert into plants (owner, id, name) values ('alice', ${id}, '${name}')`),
    ready: async () => waitForStatus(`${await project.url()}/readyz`, 200)
  }
}
