import { join } from 'node:path'

export const packages = join(import.meta.dirname, '../node_modules')

/** The path of a program of test/system/package.json. */
export const binOf = (program: string) => join(packages, '.bin', program)
