import type { ChildProcess } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { memoryMiB } from '../../support/processes.ts'
import type { Program } from '../../support/program.ts'
import { createClient, describe, type Client, type HttpResponse } from './client.ts'

const pauseMs = 25
const patienceMs = 10_000

/** For `ms` milliseconds each client creates, lists and deletes a plant in a loop. Measures the service. */
export async function observe (
  service: Program, clients: Client[], name: string, ms: number, tickFile: string
) {
  const [writes, lists, live]: [HttpResponse[], HttpResponse[], HttpResponse[]] = [[], [], []]
  const [began, end] = [Date.now(), performance.now() + ms]
  const memory = watchMemory(service.child)
  const prober = createClient(service.address)
  // Aborts requests that are still in flight `patienceMs` after `end`.
  const closeAll = () => { for (const client of [prober, ...clients]) client.close() }
  const giveUp = setTimeout(closeAll, ms + patienceMs)
  const probing = (async () => {
    while (performance.now() < end) {
      live.push(await prober.get('/livez'))
      await delay(pauseMs)
    }
  })()
  await Promise.all(clients.map(async (client) => {
    while (performance.now() < end) {
      writes.push(await client.create({ id: 1, name }))
      lists.push(await client.list())
      writes.push(await client.delete(1))
      await delay(pauseMs)
    }
  }))
  await probing
  prober.close()
  clearTimeout(giveUp)
  const failed = [...writes, ...lists, ...live].filter(({ status }) => status !== 200 && status !== 204)
  const faults = failed.length === 0
    ? []
    : [`${failed.length} requests of others failed, such as ${describe(failed[0] as HttpResponse)}`]
  return { writes, lists, live, memory: memory.peak(), tickMs: longestTick(tickFile, began), faults }
}

/** Returns the longest tick in ms that tick-probe.ts recorded after `since`, or 0 if there is none. */
function longestTick (file: string, since: number): number {
  const ticks = readFileSync(file, 'utf8').split('\n').map((line) => line.split(' ').map(Number))
  return Math.max(0, ...ticks.filter(([at = 0]) => at > since).map(([, used = 0]) => used))
}

/** `peak` stops the sampling and returns the largest sample in MiB. */
export function watchMemory (child: ChildProcess) {
  let most = 0
  const sample = () => {
    if ((child.exitCode ?? child.signalCode) === null) most = Math.max(most, memoryMiB(child.pid as number))
  }
  const sampler = setInterval(sample, 100)
  sample()
  return {
    peak (): number {
      clearInterval(sampler)
      return most
    }
  }
}
