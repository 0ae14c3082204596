import { readFileSync, writeFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { memoryMiB } from '../../support/processes.ts'
import type { Program } from '../../support/program.ts'
import { createClient, describe, type Client, type HttpResponse } from './client.ts'
import { summary } from './report.ts'

const pauseMs = 25
const patienceMs = 10_000

/**
 * For `ms` milliseconds each client creates, lists and deletes a plant in a loop. Measures the service.
 * Also sends probes to each of the `addresses`.
 */
export async function observe (
  { child }: Program, addresses: string[], clients: Client[], name: string, ms: number, tickFile = '/dev/null'
) {
  const [writes, lists]: [HttpResponse[], HttpResponse[]] = [[], []]
  const [began, end] = [Date.now(), performance.now() + ms]
  // Reset the peak of the memory, which Linux counts for each process.
  writeFileSync(`/proc/${child.pid}/clear_refs`, '5')
  const probers = addresses.map((address) => createClient(address))
  // Aborts requests that are still in flight `patienceMs` after `end`.
  const closeAll = () => { for (const client of [...probers, ...clients]) client.close() }
  const giveUp = setTimeout(closeAll, ms + patienceMs)
  const probing = Promise.all(probers.map(async (prober) => {
    const responses: HttpResponse[] = []
    while (performance.now() < end) {
      responses.push(await prober.get('/livez'))
      await delay(pauseMs)
    }
    prober.close()
    return responses
  }))
  await Promise.all(clients.map(async (client) => {
    while (performance.now() < end) {
      writes.push(await client.create({ id: 1, name }))
      lists.push(await client.list())
      writes.push(await client.delete(1))
      await delay(pauseMs)
    }
  }))
  const live = await probing
  clearTimeout(giveUp)
  const failed = [...writes, ...lists, ...live.flat()]
    .filter(({ status }) => status !== 200 && status !== 204)
  const faults = summary('requests of others failed', failed.map(describe))
  const hasEnded = (child.exitCode ?? child.signalCode) !== null
  const memory = hasEnded ? NaN : memoryMiB(child.pid as number, 'VmHWM')
  return { writes, lists, live, memory, tickMs: longestTick(tickFile, began), faults }
}

/** Returns the longest tick in ms that tick-probe.ts recorded after `since`, or 0 if there is none. */
function longestTick (file: string, since: number): number {
  const ticks = readFileSync(file, 'utf8').split('\n').map((line) => line.split(' ').map(Number))
  return Math.max(0, ...ticks.filter(([at = 0]) => at > since).map(([, used = 0]) => used))
}
