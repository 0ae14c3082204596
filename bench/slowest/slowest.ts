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
    for (const contender of contenders) {
      const measure = (isWarm: boolean) => {
        firstId += 1_000_000_000
        const order = { load, pauseMs: pausesMs[load] ?? 0, firstId }
        const isService = contender === contenders[0]
        return run(postgres, contender, generator, order, { isWarm, isService })
      }
      const warm = await measure(true)
      const fresh = await measure(false)
      sections.push(`### ${load}, ${contender.title}\n\n${show(warm, fresh)}`)
    }
  }
  return `Shares of the time of all requests and of the slowest hundredth, in %. "p99 without" is the 99th
percentile in ms if the part took no time. The load is a third of the full rate.

${sections.join('\n\n')}`
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

function show (warm: Run, fresh: Run): string {
  const runs = [warm, fresh]
  const p99 = (requests: Divided[], part?: Part) => quantile(requests.map((request) =>
    request.total - (part === undefined ? 0 : request[part] ?? 0)), 0.99)
  const means = runs.map(({ requests }) => [meanOf(requests, 1), meanOf(requests, 0.01)] as const)
  const share = (mean: Divided, ms = 0) => round(ms / mean.total * 100)
  const cellsOf = (part: Part) => runs.flatMap(({ requests }, run) =>
    [...(means[run] ?? []).map((mean) => share(mean, mean[part])), round(p99(requests, part))])
  const rows = (Object.keys(parts) as Part[]).map((part) => [parts[part], ...cellsOf(part)])
  /** The part of the callbacks' time that a warmed program does not need. */
  const cold = Math.max(0, 1 - warm.callbacks / fresh.callbacks)
  const head = ['warmed', 'first 10 s'].flatMap((run) => [`${run}: all`, 'slowest', 'p99 without'])
  return table(['', ...head], [
    ['whole request, ms', ...runs.flatMap(({ requests }, run) =>
      [...(means[run] ?? []).map(({ total }) => round(total)), round(p99(requests))])],
    ...rows.filter(([, all]) => all !== '0'),
    ['of the callbacks: code not yet optimized', '', '', '', ...(means[1] ?? []).map((mean) =>
      share(mean, ((mean.own ?? 0) + (mean.others ?? 0)) * cold)), '']
  ])
}
