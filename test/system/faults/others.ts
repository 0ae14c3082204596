import { writeFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { hasEnded, memoryMiB } from '../../support/processes.ts'
import type { Program } from '../../support/program.ts'
import { createClient, describe, type Client, type HttpResponse } from './client.ts'
import { summary } from './report.ts'

const [pauseMs, patienceMs] = [25, 10_000]

/**
 * For `ms` milliseconds each client creates, lists and deletes a plant in a loop. Measures the service.
 * Also sends probes to each of the `addresses`. `tickMs` is the longest tick that tick-probe.ts wrote, or 0.
 */
export async function observe (
  { child, stderr }: Program, addresses: string[], clients: Client[], name: string, ms: number
) {
  const [writes, lists]: [HttpResponse[], HttpResponse[]] = [[], []]
  const live = addresses.map((): HttpResponse[] => [])
  const [earlier, end] = [stderr().length, performance.now() + ms]
  // Reset the peak of the memory, which Linux counts for each process.
  writeFileSync(`/proc/${child.pid}/clear_refs`, '5')
  const probers = addresses.map((address) => createClient(address))
  // Aborts requests that are still in flight `patienceMs` after `end`.
  const closeAll = () => { for (const client of [...probers, ...clients]) client.close() }
  const giveUp = setTimeout(closeAll, ms + patienceMs)
  const repeat = async (work: () => Promise<unknown>) => {
    while (performance.now() < end) {
      await work()
      await delay(pauseMs)
    }
  }
  await Promise.all([
    ...probers.map((prober, index) => repeat(async () => live[index]?.push(await prober.get('/livez')))),
    ...clients.map((client) => repeat(async () => {
      writes.push(await client.create({ id: 1, name }))
      lists.push(await client.list())
      writes.push(await client.delete(1))
    }))
  ])
  clearTimeout(giveUp)
  for (const prober of probers) prober.close()
  const failed = [...writes, ...lists, ...live.flat()]
    .filter(({ status }) => status !== 200 && status !== 204)
  const faults = summary('requests of others failed', failed.map(describe))
  const memory = hasEnded(child) ? NaN : memoryMiB(child.pid as number, 'VmHWM')
  const ticks = stderr().slice(earlier).matchAll(/tick (\S+)/g).map(([, used]) => Number(used))
  return { writes, lists, live, memory, tickMs: Math.max(0, ...ticks), faults }
}
