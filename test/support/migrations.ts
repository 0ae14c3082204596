import { readdir } from 'node:fs/promises'
import { join, parse } from 'node:path'

/** The names of all migrations, the oldest first. */
export const migrations = (await readdir(join(import.meta.dirname, '../../migrations'))).sort().map((file) => parse(file).name)
