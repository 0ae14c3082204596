// Tells tap which source files to measure for each test file: all of src, or none.
import { join } from 'node:path'

const root = join(import.meta.dirname, '../..').replaceAll(/\W/g, '\\$&')

// Ignore packages: reading their source maps takes a quarter of a test's processor time. Don't ignore tap's
// mocks: they load before src, and the first file that is not ignored starts the measurement.
process.env._TAPJS_PROCESSINFO_EXCLUDE_ = String(
  new RegExp(`^(node|tapmock):|^${root}\\/(node_modules\\/(?!@tapjs\\/mock\\/)|dev\\/|test\\/|\\.tap\\/)`))

// These tests run without coverage, which saves a quarter of their time. Other tests cover the same lines.
const unmeasured = [
  'access/credentials', 'plants/plants', 'scheduling/batcher-orders', 'table-gateway/pages',
  'table-gateway/writes'
]

export default (file: string): string | null =>
  unmeasured.some((name) => file === `test/${name}.test.ts`) ? null : 'src/**/*.ts'
