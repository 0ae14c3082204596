import { basename } from 'node:path'
import type { Scope } from '../../support/program.ts'
import { round } from '../../support/table.ts'
import { maxShutdownMs, measure, type AttackOptions } from './attack-run.ts'
import { attacks as all, type Attack } from './attack-table.ts'
import type { Postgres } from './postgres.ts'
import { latency, type Cell, type Report } from './report.ts'
import { maxAttackConnections } from './shipped-proxy.ts'

export interface AttacksOptions extends AttackOptions {
  /** Positions in attack-table.ts, from 1, or beginnings of attack titles. Without `rows` all attacks run. */
  rows?: string[] | undefined
}

const [maxP99Ms, maxLiveMs, maxTickMs, maxLogLines] = [100, 250, 30, 100]
const [maxMemoryMiB, maxGrowthMiB] = [400, 100]

const head = [
  'attack', 'limited by', 'writes, ms', 'lists, ms', `/livez, worst ms (${maxLiveMs})`,
  `memory before, during, after, MiB (${maxMemoryMiB}, growth ${maxGrowthMiB})`,
  `longest tick, ms (${maxTickMs})`, `log lines a second (${maxLogLines})`,
  `shutdown (0 within ${maxShutdownMs / 1000} s)`, 'responses to the attacker'
]
const notes = [
  'Five other users (20 beside the attack on USER_RATE) create, list and delete a plant in turn. Times: ' +
  'p99 before the attack / median / p99 / worst during the attack. ' +
  `The bound of p99 is ${maxP99Ms} ms, or twice the p99 before. ` +
  'Bold figures exceed their bound. ' +
  'Ticks are in ms of processor time, in steps of 4 ms; ticks below 10 ms count as 0.'
]

const title = ({ name, connections }: Attack) => `${name}, ${connections} connections`

function select (rows: string[]): Attack[] {
  const found = rows.map((row) => all.filter((attack, index) =>
    /^\d+$/.test(row) ? index + 1 === Number(row) : title(attack).startsWith(row)))
  if (found.some(({ length }) => length === 0)) {
    const titles = all.map((attack, index) => `${index + 1} ${title(attack)}`)
    throw new Error(`Expected rows of:\n${titles.join('\n')}`)
  }
  return found.flat()
}

export async function attacks (
  scope: Scope, postgres: Postgres, { rows, ...options }: AttacksOptions
): Promise<Report> {
  const report: Report =
    { title: 'One attacker, and the cost to other users', head, rows: [], notes, breaches: [], misses: [] }
  if (options.behind !== undefined) {
    report.title += `, behind ${basename(options.behind)}`
    report.notes = [...notes, `At most ${maxAttackConnections} connections attack. ` +
      'The times of /livez: directly / through the proxy.']
  }
  for (const attack of rows ? select(rows) : all) {
    const name = `${all.indexOf(attack) + 1} ${title(attack)}`
    if (options.behind !== undefined && attack.onlyDirect !== undefined) {
      report.rows.push([name, attack.onlyDirect, ...Array(head.length - 2).fill('–')])
      continue
    }
    const { cells, breaches, misses } = judge(await measure(scope, postgres, attack, options))
    report.rows.push([name, attack.limitedBy, ...cells])
    report.breaches.push(...breaches.map((breach) => `${name}: ${breach}`))
    report.misses.push(...misses.map((miss) => `${name}: ${miss}`))
  }
  return report
}

function judge (
  { alone, during, left, logLines, code, shutdownMs, counts, faults }: Awaited<ReturnType<typeof measure>>
) {
  const misses: string[] = []
  const bounded = (what: string, figure: number, max: number) => {
    if (!(figure > max)) return round(figure)
    misses.push(`${what} ${round(figure)}, at most ${round(max)}`)
    return `**${round(figure)}**`
  }
  const times = (kind: 'writes' | 'lists') => {
    const [before, p99] = [latency(alone[kind], 0.99), latency(during[kind], 0.99)]
    const marked = bounded(`${kind} of others, p99 ms`, p99, Math.max(maxP99Ms, 2 * before))
    const [median, worst] = [latency(during[kind], 0.5), latency(during[kind], 1)]
    return [round(before), round(median), marked, round(worst)].join(' / ')
  }
  const breaches = code === 0 ? faults : [...faults, `shutdown: exit code ${code}`]
  const cells: Cell[] = [
    times('writes'), times('lists'),
    during.live.map((live) => bounded('/livez, worst ms', latency(live, 1), maxLiveMs)).join(' / '),
    [round(alone.memory), bounded('memory, MiB', during.memory, maxMemoryMiB),
      bounded('memory afterwards, MiB', left, alone.memory + maxGrowthMiB)].join(', '),
    bounded('longest tick, ms', during.tickMs, maxTickMs),
    bounded('log lines a second', logLines, maxLogLines),
    `${code === 0 ? 0 : `**${code ?? 'killed'}**`} after ${
      bounded('shutdown, s', shutdownMs / 1000, maxShutdownMs / 1000)} s`,
    Object.entries(counts).map(([status, count]) => `${count} × ${status}`).join(', ')
  ]
  return { cells, breaches, misses }
}
