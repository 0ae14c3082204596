// The command migrate.
import type { Config } from '../config.ts'
import { migrate, type MigrateOptions } from '../database/migrate.ts'
import { withDatabase } from './database.ts'

/** Migrates up to the newest migration, or down by one, and prints the migrations it ran. */
export async function runMigrations (
  config: Config, direction: 'up' | 'down', options: MigrateOptions
): Promise<void> {
  await withDatabase(config, async (url) => {
    const names = await migrate(url, direction, options)
    console.log(names.length === 0 ? 'nothing to do' : names.map((name) => `${direction} ${name}`).join('\n'))
  })
}
