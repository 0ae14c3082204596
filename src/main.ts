#!/usr/bin/env -S node --max-semi-space-size=16 --heap-growing-percent=100 --no-allocation-site-pretenuring --expose-gc
// Runs a command. From the first moment on, a signal ends the program.
// The first line has the options of V8 for every start: see docs/design/016-cost-of-a-request.md.
import { interrupt } from './commands/interrupt.ts'

// Linux ignores signals that process 1 of a container has no listener for.
for (const name of ['SIGINT', 'SIGTERM']) process.on(name, interrupt)
// An import at the top would load the commands before the listeners exist.
const { run } = await import('./commands/program.ts')
await run(process.argv.slice(2))
