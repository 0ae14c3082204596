// Runs the commands of the operator's documents as an operator would.
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Test } from 'tap'
import { buildDatabaseImage, buildImage, openProject, root, until } from './support.ts'

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

/** Opens a Compose project. Its backups are in a folder of the test. */
export async function openOperator (t: Test, ...overlays: string[]) {
  await buildImage()
  const isBackedUp = overlays.includes('backup')
  if (isBackedUp) await buildDatabaseImage()
  const project = await openProject(t, ...overlays)
  const folder = t.testdir()
  if (isBackedUp) {
    project.env.BACKUPS = join(folder, 'backups')
    // The files belong to PostgreSQL's user.
    t.teardown(() => project.compose('run', '-T', '--rm', '--no-deps', '--user=root', '--entrypoint=sh',
      'database', '-c', 'rm -rf /backups/*').catch(() => {}))
  }
  // An instance may stop at once, because the tests send no load.
  project.env.DRAIN_DELAY = '0'
  return {
    project,
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

/** Opens a Compose project with backup.yml, and makes the first backup. */
export async function openBackups (t: Test) {
  const operator = await openOperator(t, 'backup')
  const { project, follow } = operator
  // The service `backup` may just make a backup, too.
  const backUp = () => until(() => follow('Back up', {}, 1).catch(() => ''), (text) => text !== '')
  let last = 1

  await follow('Back up')
  await project.ready()
  await backUp()
  return {
    ...operator,
    backUp,
    now: () => project.sql('select clock_timestamp()'),
    /** Recovers, by default as much as the newest history has, into a new history. */
    async recover (UNTIL = '', FROM = project.env.STANZA ?? 'plants') {
      const before = project.env.STANZA
      project.env.STANZA = `plants-${++last}`
      await follow('Recover', { FROM, UNTIL }).catch((error) => {
        project.env.STANZA = before
        throw error
      })
      await follow('Recover', {}, 1)
    }
  }
}
