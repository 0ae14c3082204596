import { readdir } from 'node:fs/promises'
import { join, parse } from 'node:path'

const files = await readdir(join(import.meta.dirname, '../../migrations'))

export const migrations = files.sort().map((file) => parse(file).name)
