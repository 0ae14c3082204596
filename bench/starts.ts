// Measures how long contenders take until they are ready, and their memory one second later.
import { setTimeout as delay } from 'node:timers/promises'
import { memoryMiB } from '../test/support/processes.ts'
import { table } from '../test/support/table.ts'
import { spread } from './measure.ts'
import { start, type Contender, type Postgres } from './running.ts'

export async function starts (postgres: Postgres, contenders: Contender[], count: number) {
  const rows = []
  for (const contender of contenders) {
    const [ready, memory]: [number[], number[]] = [[], []]
    while (ready.length < count) {
      await using running = await start(contender, postgres.url(contender.name))
      await delay(1000)
      ready.push(running.startMs)
      memory.push(running.pids.reduce((sum, pid) => sum + memoryMiB(pid, 'VmRSS'), 0))
    }
    rows.push([contender.title, spread(ready), spread(memory)])
  }
  return table(['', 'ready, ms', 'memory, MiB'], rows)
}
