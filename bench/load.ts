// Sends a load to a contender with wrk. Measures requests a second, latency and processor time.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { interrupted, tokensFile, type Running } from './running.ts'

export type Load = 'list' | 'create' | 'delete' | 'mix'
export const loads: Load[] = ['list', 'create', 'delete', 'mix']
export const connections = 64

export interface Figures {
  requests: number
  perSecond: number
  /** Latency in ms: the median and the 99th percentile. */
  p50: number
  p99: number
  /** Processor time of a request in µs: the contender's, and that of all PostgreSQL processes. */
  own: number
  postgres: number
}

export interface LoadOptions {
  seconds: number
  /** How long a connection pauses before a request, in ms on average. 0 is full load. */
  pauseMs: number
  /** The first id that the load deletes. The load creates plants with much larger ids. */
  firstId: number
}

/** Returns the processor time of a process and all its descendants. Linux counts the time in 10 ms ticks. */
function processorSeconds (pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? []
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean)
  const own = fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) / 100
  return children.reduce((sum, child) => {
    try {
      return sum + processorSeconds(Number(child))
    } catch {
      return sum // The child has ended.
    }
  }, own)
}

/** Rejects if no response arrives, or if a request fails or gets an error status. */
export async function sendLoad (contender: Running, load: Load, options: LoadOptions): Promise<Figures> {
  const { seconds, pauseMs, firstId } = options
  const used = () => [contender.pid, contender.postgresPid].map(processorSeconds)
  const earlier = used()
  const threads = '2'
  const wrk = spawn('wrk', [
    '-t', threads, '-c', `${connections}`, '-d', `${seconds}s`, '-s', join(import.meta.dirname, 'load.lua'),
    contender.url, '--', load, tokensFile, `${firstId}`, threads, `${pauseMs}`
  ], { stdio: ['ignore', 'pipe', 'inherit'], signal: interrupted })
  const [output, [code]] = await Promise.all([text(wrk.stdout), once(wrk, 'exit')])
  if (code !== 0) throw new Error(`wrk failed: ${output}`)
  const [own = 0, postgres = 0] = used().map((total, index) => total - (earlier[index] ?? 0))
  const { requests, duration, failed, p50, p99 } = JSON.parse(output.trim().split('\n').at(-1) ?? '')
  if (failed > 0 || requests === 0) throw new Error(`${failed} of ${requests} requests failed\n${output}`)
  return {
    requests,
    perSecond: requests / duration * 1e6,
    p50: p50 / 1e3,
    p99: p99 / 1e3,
    own: own / requests * 1e6,
    postgres: postgres / requests * 1e6
  }
}
