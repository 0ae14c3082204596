// The `coverage-map` of tap: names the source files to measure for each test file, all of src or none.
import { join } from 'node:path'

const root = join(import.meta.dirname, '../..').replaceAll(/\W/g, '\\$&')

// tap records each file that a process loads and looks for its source map. For packages this work takes
// a quarter of the processor time of a test, so skip packages. tap sets this variable for each run.
// tap starts to measure at the first recorded file. That file must belong to tap, so keep its packages.
process.env._TAPJS_PROCESSINFO_EXCLUDE_ =
  String(new RegExp(`^(node|tapmock):|^${root}\\/(node_modules\\/(?!@tapjs\\/)|dev\\/|test\\/|\\.tap\\/)`))

// Other tests cover the same lines of src. Without coverage these files run in three quarters of the time.
const unmeasured = new Set([
  'access/routes', 'access/secrets', 'examples', 'http/hostile', 'http/int64', 'optional', 'http/recording',
  'http/text', 'api-docs/openapi', 'api-docs/quick-start', 'plants/model'
].map((name) => `test/${name}.test.ts`))

export default (file: string): string | null => unmeasured.has(file) ? null : 'src/**/*.ts'
