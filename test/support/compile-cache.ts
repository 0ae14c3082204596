// Keeps compiled code for the next test run. `node-arg` in .taprc imports this file into each test process.
import { enableCompileCache } from 'node:module'
import { join } from 'node:path'

// Don't use the cache while tap measures coverage: V8 does not report every line of cached functions.
if (process.env._TAPJS_PROCESSINFO_COVERAGE_ === '0') {
  enableCompileCache(join(import.meta.dirname, '../../node_modules/.cache/node'))
}
