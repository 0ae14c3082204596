// Helpers for tests that run imports and exports in this process.
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { formatError } from '../../src/commands/format.ts'
import { exportRows } from '../../src/commands/transfer/export.ts'
import { importRows, type ImportOptions } from '../../src/commands/transfer/import.ts'
import { readConfig } from '../../src/config.ts'
import { plantsTable } from '../../src/plants/plant.ts'
import type { Table } from '../../src/table-gateway/table.ts'
import { createDatabase, sql } from './database.ts'

export const ends = (code: number, ...report: string[]) => ({ code, report })
export const created = (count: number) => ends(0, `${count} created, 0 existing, 0 rejected`)

/** Creates a folder for files, and a database unless `environment` has DATABASE_URL. */
export async function openTransfers (
  t: Test, environment: Record<string, string> = {}, table: Table = plantsTable
) {
  const url = environment.DATABASE_URL ?? await createDatabase(t)
  const config = readConfig({ DATABASE_URL: url, ...environment })
  // An export flushes its file. TMPDIR may be in memory, where that takes no time.
  const folder = await mkdtemp(join(tmpdir(), 'transfer-'))
  t.teardown(() => rm(folder, { recursive: true }))

  async function file (name: string, content: string | Buffer): Promise<string> {
    await writeFile(join(folder, name), content)
    return join(folder, name)
  }

  /** Runs a command in this process. `report` has the lines that the command prints to standard error. */
  async function ended (command: () => Promise<void>): Promise<{ code: unknown, report: string[] }> {
    const printed = t.capture(console, 'error')
    const error = await command().catch((error) => error)
    const report = printed().map(({ args }) => String(args[0]))
    const code = error === undefined ? process.exitCode ?? 0 : 1
    process.exitCode = undefined
    return { code, report: error === undefined ? report : [...report, formatError(error)] }
  }

  return {
    url,
    config,
    folder,
    file,
    ended,

    async importFile (
      user: string | undefined, name: string, content: string | Buffer, options: Partial<ImportOptions> = {}
    ) {
      const path = await file(name, content)
      return ended(() => importRows(config, table, user, path, { dryRun: false, ...options }))
    },

    exportFile: (user: string | undefined, name: string, options: { format?: string } = {}) =>
      ended(() => exportRows(config, table, user, join(folder, name), options)),

    stored: (user: string) =>
      sql(url, 'select id::text, name, tag from plants where owner = $1 order by plants.id', [user])
  }
}
