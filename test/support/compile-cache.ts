// Imported by each test process: what it compiles is kept for the next run. (`node-arg` in .taprc.)
import { enableCompileCache } from 'node:module'
import { join } from 'node:path'

// Not where coverage is measured: of functions that come from it V8 doesn't tell every line.
if (process.env._TAPJS_PROCESSINFO_COVERAGE_ === '0') {
  enableCompileCache(join(import.meta.dirname, '../../node_modules/.cache/node'))
}
