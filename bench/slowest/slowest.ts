// Explains the slowest hundredth of the requests: what did each wait for?
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { round, table } from '../../test/support/table.ts'
import { quantile, type Load } from '../measure.ts'
import { folder, start, tokensFile, withClient, type Contender, type Postgres } from '../running.ts'
import { thousandUsers } from '../throughput.ts'
import type { Order, Sent } from './generator.ts'
import type { Marks } from './marks.ts'
import { divide, meanOf, parts, type Divided, type Part } from './shares.ts'

/** After 12 s of the load, V8 has optimized the code. */
const [warmUpSeconds, seconds] = [12, 10]

/** Starts the generator. One process sends all loads, so that its own code is optimized, too. */
function startGenerator () {
  const child = fork(join(import.meta.dirname, 'generator.ts'), { serialization: 'advanced' })
  return {
    async send (order: Order): Promise<Sent[]> {
      child.send(order)
      const ended = once(child, 'exit').then(() => { throw new Error('the generator has failed') })
      ended.catch(() => {})
      return (await Promise.race([once(child, 'message'), ended]))[0]
    },
    [Symbol.dispose]: () => { child.kill() }
  }
}
type Generator = ReturnType<typeof startGenerator>

interface Run {
  requests: Divided[]
  /** The time of callbacks for each request, in ms. */
  callbacks: number
}

export async function slowest (
  postgres: Postgres, contenders: Contender[], loads: Load[], pausesMs: Partial<Record<Load, number>>
): Promise<string> {
  using generator = startGenerator()
  const sections: string[] = []
  let firstId = 1_000_000
  for (const load of loads) {
    const columns: Array<{ title: string, mean: Divided, cold: number }> = []
    for (const [index, contender] of contenders.entries()) {
      const measure = (isWarm: boolean) => {
        firstId += 1_000_000_000
        const order = { load, pauseMs: pausesMs[load] ?? 0, firstId }
        return run(postgres, contender, generator, order, { isWarm, isService: index === 0 })
      }
      const warm = await measure(true)
      const fresh = await measure(false)
      for (const [title, { requests, callbacks }] of Object.entries({ warmed: warm, 'first 10 s': fresh })) {
        const p99 = quantile(requests.map(({ total }) => total), 0.99)
        const cold = Math.max(0, 1 - warm.callbacks / callbacks)
        columns.push({ title: `${contender.title}, ${title}: all`, mean: meanOf(requests, 1), cold })
        columns.push({ title: `slowest, from ${round(p99)} ms`, mean: meanOf(requests, 0.01), cold })
      }
    }
    sections.push(`### ${load}\n\n${show(columns)}`)
  }
  return sections.join('\n\n')
}

async function run (
  postgres: Postgres, contender: Contender, generator: Generator,
  load: Pick<Order, 'load' | 'pauseMs' | 'firstId'>,
  { isWarm, isService }: { isWarm: boolean, isService: boolean }
): Promise<Run> {
  const url = postgres.url(contender.name)
  await withClient(url, (database) => thousandUsers()(database, load.firstId, 100_000))
  const file = join(folder, `marks-${load.firstId}.json`)
  const NODE_OPTIONS = `--import=${join(import.meta.dirname, 'marks.ts')}`
  const env = { ...contender.env, NODE_OPTIONS, MARKS: file }
  await using running = await start({ ...contender, env }, url)
  const skip = isWarm ? warmUpSeconds : 0
  const tokens = readFileSync(tokensFile, 'utf8').split('\n')
  const sent = await generator.send({ ...load, url: running.url, tokens, seconds: skip + seconds })
  const [pid = 0] = running.pids
  process.kill(pid, 'SIGTERM')
  while (existsSync(`/proc/${pid}`)) await delay(10)
  const marks: Marks = JSON.parse(readFileSync(file, 'utf8'))
  const from = (sent[0]?.sent ?? 0) + skip * 1000
  const measured = sent.filter((request) => request.sent >= from)
  const { requests, busy } = divide(measured, marks, isService)
  return { requests, callbacks: busy / requests.length }
}

function show (columns: Array<{ title: string, mean: Divided, cold: number }>): string {
  const share = (mean: Divided, ms: number) => round(ms / mean.total * 100)
  const rows = (Object.keys(parts) as Part[]).map((part) =>
    [parts[part], ...columns.map(({ mean }) => share(mean, mean[part] ?? 0))])
  return table(['', ...columns.map(({ title }) => title)], [
    ['mean, ms', ...columns.map(({ mean }) => round(mean.total))],
    ...rows.filter(([, ...cells]) => cells.some((cell) => cell !== '0')),
    ['of the callbacks: code not yet optimized',
      ...columns.map(({ mean, cold }) => share(mean, ((mean.own ?? 0) + (mean.others ?? 0)) * cold))]
  ])
}
