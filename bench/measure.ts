// Sends a load to a contender. Measures requests per second, latency and processor time.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { round } from '../test/support/table.ts'
import { folder, tokensFile, type Entry } from './running.ts'

export type Load = 'list' | 'create' | 'delete' | 'mix'
export const loads: Load[] = ['list', 'create', 'delete', 'mix']

export interface Figures {
  requests: number
  perSecond: number
  /** Latency in ms: the median and the 99th percentile. NaN for pgbench. */
  p50: number
  p99: number
  /** Processor time per request in µs. `own` counts the contender, `postgres` all PostgreSQL processes. */
  own: number
  postgres: number
}

export const processor = ({ own, postgres }: Pick<Figures, 'own' | 'postgres'>) => own + postgres

export interface Duration { seconds: number, rounds: number }

interface Options {
  connections: number
  seconds: number
  /** How long a connection pauses before a request, in ms on average. By default, it does not pause. */
  pauseMs?: number | undefined
  /** The first id that the load deletes. The load creates plants with much larger ids. */
  firstId: number
}

export function median (values: number[]) {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = (sorted.length - 1) / 2
  return ((sorted[Math.floor(middle)] ?? NaN) + (sorted[Math.ceil(middle)] ?? NaN)) / 2
}

export const quantile = (values: number[], fraction: number) =>
  values.toSorted((a, b) => a - b)[Math.floor((values.length - 1) * fraction)] ?? NaN

/** Returns the text `median [lowest–highest]`, or a dash when a value is NaN. */
export function spread (values: number[]) {
  if (values.some(Number.isNaN)) return '–'
  return `${round(median(values))} [${round(Math.min(...values))}–${round(Math.max(...values))}]`
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

export async function run (program: string, args: string[], { pids, postgres }: Entry) {
  const used = () =>
    [pids.reduce((sum, pid) => sum + processorSeconds(pid), 0), processorSeconds(postgres)] as const
  const [ownBefore, postgresBefore] = used()
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  const [output, [code]] = await Promise.all([text(child.stdout), once(child, 'exit')])
  if (code !== 0) throw new Error(`${program} failed: ${output}`)
  const [own, ofPostgres] = used()
  const processor = (requests: number) => ({
    own: (own - ownBefore) / requests * 1e6,
    postgres: (ofPostgres - postgresBefore) / requests * 1e6
  })
  return { output, processor }
}

/** Sends a load with wrk. Rejects if no response arrives, or if any request fails or gets an error status. */
export async function wrk (entry: Entry, load: Load, options: Options): Promise<Figures> {
  const { connections, seconds, pauseMs = 0, firstId } = options
  const threads = String(Math.min(2, connections))
  const script = join(import.meta.dirname, 'load.lua')
  const { output, processor } = await run('wrk', [
    '-t', threads, '-c', `${connections}`, '-d', `${seconds}s`, '-s', script, entry.url, '--', load,
    entry.tokensFile ?? tokensFile, `${firstId}`, threads, `${pauseMs}`
  ], entry)
  const { requests, duration, failed, p50, p99 } = JSON.parse(output.trim().split('\n').at(-1) ?? '')
  if (failed > 0 || requests === 0) throw new Error(`${failed} of ${requests} requests failed\n${output}`)
  const perSecond = requests / duration * 1e6
  return { requests, perSecond, p50: p50 / 1e3, p99: p99 / 1e3, ...processor(requests) }
}

const statements = {
  list: `\\set reader random(0, 999)
select name, tag from plants where owner = :reader order by id;`,
  create: `\\set created :created + :clients
\\set id :created + :client_id
\\set writer random(1000, 1999)
insert into plants (owner, id, name, tag) values (:writer, :id, 'Monstera deliciosa', 'indoor')
on conflict do nothing;`,
  delete: `\\set deleted :deleted + :clients
\\set id :deleted + :client_id
\\set writer 1000 + :id % 1000
delete from plants where owner = :writer and id = :id;`
}

/**
 * Sends prepared statements directly to PostgreSQL on 16 connections. On 64 connections, PostgreSQL would
 * execute fewer statements per second.
 */
export async function pgbench (entry: Entry, load: Load, { seconds, firstId }: Options): Promise<Figures> {
  const connections = 16
  const mix = { list: 80, create: 15, delete: 5 }
  const shares: Partial<Record<Load, number>> = load === 'mix' ? mix : { [load]: 1 }
  const files = Object.entries(statements).flatMap(([name, statement]) => {
    writeFileSync(join(folder, `${name}.sql`), statement)
    return ['-f', `${join(folder, name)}.sql@${shares[name as Load] ?? 0}`]
  })
  const { output, processor } = await run('pgbench', [
    '-n', '-M', 'prepared', '-c', `${connections}`, '-j', '2', '-T', `${seconds}`, ...files,
    '-D', `clients=${connections}`, '-D', `deleted=${firstId - connections}`,
    '-D', `created=${firstId + 100_000_000}`, entry.url
  ], entry)
  const figure = (pattern: RegExp) => Number(pattern.exec(output)?.[1])
  const requests = figure(/actually processed: (\d+)/)
  return { requests, perSecond: figure(/tps = ([\d.]+)/), p50: NaN, p99: NaN, ...processor(requests) }
}
