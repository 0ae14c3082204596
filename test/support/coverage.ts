// What tap measures: src. (Its `coverage-map`, which the runner asks for each test file.)
import { join } from 'node:path'

const root = join(import.meta.dirname, '../..').replaceAll(/\W/g, '\\$&')

// tap notes each file that a process loads, reads it again and looks for its source map: a quarter of
// what a test takes of the processors, for packages. The variable is its own, and set anew for each run.
// It begins to measure with the first file that it notes, which must be one of its own.
process.env._TAPJS_PROCESSINFO_EXCLUDE_ =
  String(new RegExp(`^(node|tapmock):|^${root}\\/(node_modules\\/(?!@tapjs\\/)|dev\\/|test\\/|\\.tap\\/)`))

// What they run of src others run, too, and look at more closely: not measured they take three quarters of the time.
const unmeasured = new Set([
  'access/revocation', 'access/routes', 'access/secrets', 'check', 'system/deploy/files', 'system/deploy/release', 'examples', 'system/faults/linearizable', 'system/faults/short',
  'system/fuzz/fuzz', 'http/hostile', 'http/int64', 'http/prism', 'http/text', 'api-docs/generated-client', 'telemetry/telemetry',
  'api-docs/openapi', 'api-docs/quick-start', 'plants/model', 'system/program/documents', 'system/program/starts'
].map((name) => `test/${name}.test.ts`))

/** All of it, or nothing. */
export default (file: string): string[] | null => unmeasured.has(file) ? null : []
