// Which database a command is about.
import { resolve } from 'node:path'
import type { Config } from '../config.ts'
import { findRunning, startEmbedded } from '../../dev/embedded-postgres.ts'

/**
 * Hands on the URL of the database that `serve` would use. Where that is the
 * program's own it says so, and starts it for the occasion unless it is running.
 */
export async function withDatabase (config: Config, work: (url: string) => Promise<void>): Promise<void> {
  if (config.DATABASE_URL !== undefined) return work(config.DATABASE_URL)
  // On standard error: standard output may be a token, or JSON.
  const folder = resolve(config.DATA_DIR)
  console.error(`DATABASE_URL is not set: this is about the program's own PostgreSQL in ${folder}`)
  const running = await findRunning(config.DATA_DIR)
  if (running !== undefined) return work(running.url)
  const embedded = await startEmbedded(config.DATA_DIR)
  try {
    await work(embedded.url)
  } finally {
    await embedded.close()
  }
}
