// Measures how long a contender takes until it is ready, and the contender's memory one second later.
import { setTimeout as delay } from 'node:timers/promises'
import { memoryMiB } from '../test/support/processes.ts'
import { spread } from './measure.ts'
import { start, type Contender } from './running.ts'

export async function starts (databaseUrl: string, contender: Contender, count: number) {
  const [ready, memory]: [number[], number[]] = [[], []]
  while (ready.length < count) {
    await using running = await start(contender, databaseUrl)
    await delay(1000)
    ready.push(running.startMs)
    memory.push(memoryMiB(running.pid, 'VmRSS'))
  }
  return { ready: spread(ready), memory: spread(memory) }
}
