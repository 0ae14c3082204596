// The `coverage-map` of tap names the source files to measure for each test file: all of src, or none.
import { join } from 'node:path'

const root = join(import.meta.dirname, '../..').replaceAll(/\W/g, '\\$&')

// tap records each file that a process loads, and looks for the file's source map. For packages this takes a
// quarter of a test's processor time, so this pattern excludes packages. tap starts to measure when it
// records the first file, and that must happen before files of src load. So the pattern does not exclude
// tap's packages, which load first.
// tap has set a pattern of its own before it imports this module. This assignment replaces that pattern.
process.env._TAPJS_PROCESSINFO_EXCLUDE_ =
  String(new RegExp(`^(node|tapmock):|^${root}\\/(node_modules\\/(?!@tapjs\\/)|dev\\/|test\\/|\\.tap\\/)`))

// These tests run without coverage, which saves a quarter of their time. Other tests cover the same lines.
const unmeasured = new Set([
  'access/routes', 'access/secrets', 'examples', 'http/hostile', 'http/int64', 'optional', 'http/recording',
  'http/text', 'api-docs/openapi', 'api-docs/quick-start', 'plants/model'
].map((name) => `test/${name}.test.ts`))

export default (file: string): string | null => unmeasured.has(file) ? null : 'src/**/*.ts'
