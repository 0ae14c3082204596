// What tap measures: src. (Its `coverage-map`, which the runner asks for each test file.)
import { join } from 'node:path'

const root = join(import.meta.dirname, '../..').replaceAll(/\W/g, '\\$&')

// tap notes each file that a process loads, reads it again and looks for its source map: a quarter of
// what a test takes of the processors, for packages. The variable is its own, and set anew for each run.
// It begins to measure with the first file that it notes, which must be one of its own.
process.env._TAPJS_PROCESSINFO_EXCLUDE_ =
  String(new RegExp(`^(node|tapmock):|^${root}\\/(node_modules\\/(?!@tapjs\\/)|test\\/|\\.tap\\/)`))

// What they run of src, others run and look at more closely: without measuring it they take three quarters of the time, and less.
const unmeasured = new Set([
  'test/access/revocation.test.ts', 'test/access/secrets.test.ts', 'test/deploy/files.test.ts', 'test/examples.test.ts',
  'test/faults/linearizable.test.ts', 'test/faults/short.test.ts', 'test/http/fuzz.test.ts', 'test/http/hostile.test.ts',
  'test/http/int64.test.ts', 'test/http/prism.test.ts', 'test/operations/client.test.ts',
  'test/operations/quick-start.test.ts', 'test/plants/model.test.ts',
  'test/program/documents.test.ts', 'test/program/starts.test.ts'
])

/** All of it, or nothing. */
export default (file: string): string[] | null => unmeasured.has(file) ? null : []
