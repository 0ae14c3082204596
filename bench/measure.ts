// One measurement: a load on a running contender, and what it cost.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { folder, tokensFile } from './contenders.ts'

export type Load = 'list' | 'create' | 'delete' | 'mix'
export const loads: Load[] = ['list', 'create', 'delete', 'mix']

/** Latency in milliseconds, NaN where it isn't known; processor time in microseconds a request. */
export interface Figures { requests: number, perSecond: number, p50: number, p99: number, processor: number }

/** `pids`: whose processor time is counted. `firstId`: of the plants prepared for deletion; the ids of creates follow far above. */
interface Options { connections: number, seconds: number, pids: number[], firstId: number }

export function median (values: number[]) {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = (sorted.length - 1) / 2
  return ((sorted[Math.floor(middle)] ?? NaN) + (sorted[Math.ceil(middle)] ?? NaN)) / 2
}

export const quantile = (values: number[], fraction: number) =>
  values.toSorted((a, b) => a - b)[Math.floor((values.length - 1) * fraction)] ?? NaN

/** Processor seconds of a process, its children, and those of its children that have ended. Linux counts in hundredths. */
function processorSeconds (pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? []
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean)
  const own = fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) / 100
  return children.reduce((sum, child) => {
    try {
      return sum + processorSeconds(Number(child))
    } catch {
      return sum // It ended meanwhile.
    }
  }, own)
}

export const memoryMiB = (pid: number, field: 'VmRSS' | 'VmHWM') =>
  Number(new RegExp(`${field}:\\s+(\\d+)`).exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024

async function run (program: string, args: string[], pids: number[]) {
  const used = () => pids.reduce((sum, pid) => sum + processorSeconds(pid), 0)
  const before = used()
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  const [output, [code]] = await Promise.all([text(child.stdout), once(child, 'exit')])
  if (code !== 0) throw new Error(`${program} failed: ${output}`)
  return { output, microseconds: (used() - before) * 1e6 }
}

/** Any answer but 2xx is an error. */
export async function wrk (url: string, load: Load, { connections, seconds, pids, firstId }: Options): Promise<Figures> {
  const threads = Math.min(2, connections)
  const { output, microseconds } = await run('wrk', ['-t', `${threads}`, '-c', `${connections}`, '-d', `${seconds}s`,
    '-s', join(import.meta.dirname, 'load.lua'), url, '--', load, tokensFile, `${firstId}`, `${threads}`], pids)
  const { requests, duration, failed, p50, p99 } = JSON.parse(output.trim().split('\n').at(-1) ?? '')
  if (failed > 0 || requests === 0) throw new Error(`${failed} of ${requests} requests failed\n${output}`)
  return { requests, perSecond: requests / duration * 1e6, p50: p50 / 1e3, p99: p99 / 1e3, processor: microseconds / requests }
}

const statements = {
  list: `\\set reader random(0, 999)
select name, tag from plants where owner = :reader order by id;`,
  create: `\\set created :created + :clients
\\set id :created + :client_id
\\set writer random(1000, 1999)
insert into plants (owner, id, name, tag) values (:writer, :id, 'Monstera deliciosa', 'indoor') on conflict do nothing;`,
  delete: `\\set deleted :deleted + :clients
\\set id :deleted + :client_id
\\set writer 1000 + :id % 1000
delete from plants where owner = :writer and id = :id;`
}

/**
 * The bare statements, prepared, one at a time on each connection: PostgreSQL with nothing in front of it.
 * On 16 connections, where it does most; with 64 the server processes get in each other's way.
 */
export async function pgbench (url: string, load: Load, { seconds, pids, firstId }: Options): Promise<Figures> {
  const connections = 16
  const shares: Partial<Record<Load, number>> = load === 'mix' ? { list: 80, create: 15, delete: 5 } : { [load]: 1 }
  const files = Object.entries(statements).flatMap(([name, statement]) => {
    writeFileSync(join(folder, `${name}.sql`), statement)
    return ['-f', `${join(folder, name)}.sql@${shares[name as Load] ?? 0}`]
  })
  const { output, microseconds } = await run('pgbench', ['-n', '-M', 'prepared', '-c', `${connections}`, '-j', '2', '-T', `${seconds}`,
    '-D', `clients=${connections}`, '-D', `deleted=${firstId - connections}`, '-D', `created=${firstId + 100_000_000}`, ...files, url], pids)
  const figure = (pattern: RegExp) => Number(pattern.exec(output)?.[1])
  const requests = figure(/actually processed: (\d+)/)
  return { requests, perSecond: figure(/tps = ([\d.]+)/), p50: NaN, p99: NaN, processor: microseconds / requests }
}
