// What tap measures: src. (Its `coverage-map`, which the runner asks for each test file.)
import { join } from 'node:path'

const root = join(import.meta.dirname, '../..').replaceAll(/\W/g, '\\$&')

// tap notes each file that a process loads, reads it again and looks for its source map: a quarter of
// what a test takes of the processors, for packages. The variable is its own, and set anew for each run.
// It begins to measure with the first file that it notes, which must be one of its own.
process.env._TAPJS_PROCESSINFO_EXCLUDE_ =
  String(new RegExp(`^(node|tapmock):|^${root}\\/(node_modules\\/(?!@tapjs\\/)|test\\/|\\.tap\\/)`))

/** All of it, whichever test it is. */
export default (): string[] => []
