import { fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { memoryMiB } from '../support/processes.ts'
import { unmeasured, type Program, type Scope } from '../support/program.ts'
import { round } from '../support/table.ts'
import type { Attack, Counts } from './attacker.ts'
import { createCaller, type Answer } from './caller.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { quantile, type Cell, type Report } from './report.ts'

const { serve } = unmeasured

export interface AttacksOptions {
  attacks: Array<[attack: Attack, connections: number]>
  /** How long each attack is watched, and how long it is before memory is looked at again. */
  watchMs: number
  restMs: number
}

const others = 5
const pauseMs = 25
const mostP99Ms = 100
const mostLiveMs = 500
const [mostMemoryMiB, mostLeftMiB] = [400, 100]

/** One user, or somebody without a token, asks for all it can, beside others who ask for little. */
export async function attacks (scope: Scope, postgres: Postgres, options: AttacksOptions): Promise<Report> {
  const breaches: string[] = []
  const misses: string[] = []
  const rows: Cell[][] = []
  for (const [index, [attack, connections]] of options.attacks.entries()) {
    const title = `${attack}, ${connections} connections`
    const users = Array.from({ length: others }, (_, user) => `other-${index}-${user}`)
    const [mallory = '', ...tokens] = await createUsers(postgres.url, [`mallory-${index}`, ...users])
    const service = await serve(scope, { DATABASE_URL: postgres.url })
    const large = createCaller(service.address, mallory)
    if (attack === 'large lists') await large.create({ id: 1, name: 'n'.repeat(1_040_000) })
    large.close()

    await watch(service, tokens, 1000)
    const undisturbed = await watch(service, tokens, options.watchMs)
    const attacker = fork(join(import.meta.dirname, 'attacker.ts'), [attack, service.address, mallory, String(connections)],
      { env: { ...process.env, NODE_OPTIONS: '' } })
    scope.teardown(() => { attacker.kill() })
    await once(attacker, 'message')
    const during = await watch(service, tokens, options.watchMs)
    attacker.send('stop')
    const [counts] = await once(attacker, 'message') as [Counts]
    await delay(options.restMs)
    const left = memoryMiB(service.child.pid as number)

    rows.push(['undisturbed', ...figures(undisturbed), round(undisturbed.memory), '', ''])
    rows.push([title, ...figures(during), round(during.memory), round(left), tell(counts)])
    const odd = [...during.writes, ...during.lists, ...during.live].filter(({ status }) => status !== 200 && status !== 204)
    if (odd.length > 0) breaches.push(`${title}: ${odd.length} of the others' requests failed, such as ${odd[0]?.outcome} ${odd[0]?.status} ${odd[0]?.body}`)
    const closed = service.log.filter(({ msg }) => String(msg).includes('silent'))
    if (closed.length > 0) breaches.push(`${title}: ${closed.length} healthy connections were closed`)
    for (const [what, answers] of [['writes', during.writes], ['lists', during.lists]] as const) {
      if (p(answers, 0.99) > mostP99Ms) misses.push(`${title}: ${what} of others ${round(p(answers, 0.99))} ms at the 99th percentile`)
    }
    if (p(during.live, 1) > mostLiveMs) misses.push(`${title}: /livez ${round(p(during.live, 1))} ms`)
    if (during.memory > mostMemoryMiB) misses.push(`${title}: memory ${round(during.memory)} MiB`)
    if (left > undisturbed.memory + mostLeftMiB) misses.push(`${title}: memory ${round(left)} MiB afterwards`)
    service.child.kill('SIGINT')
    await service.exited
  }
  return {
    title: 'One attacker, and what others notice',
    head: ['', 'writes, ms', 'lists, ms', '/livez, ms', 'memory at most, MiB', 'afterwards, MiB', 'attacker\'s answers'],
    rows,
    notes: [`Of ${others} others, each with a create, a list, a delete and /livez in turn and ${pauseMs} ms in between: median, 99th percentile and worst.`],
    breaches,
    misses
  }
}

const p = (answers: Answer[], fraction: number) => quantile(answers.map(({ ms }) => ms), fraction)
const tell = (counts: Counts) => Object.entries(counts).map(([status, count]) => `${count} × ${status}`).join(', ')

interface Watched { writes: Answer[], lists: Answer[], live: Answer[], memory: number }

const figures = ({ writes, lists, live }: Watched) =>
  [writes, lists, live].map((answers) => [0.5, 0.99, 1].map((fraction) => round(p(answers, fraction))).join(' / '))

/** What others are told meanwhile, and how long it takes. */
async function watch (service: Program, tokens: string[], ms: number): Promise<Watched> {
  const watched: Watched = { writes: [], lists: [], live: [], memory: 0 }
  const end = performance.now() + ms
  const sampler = setInterval(() => {
    watched.memory = Math.max(watched.memory, memoryMiB(service.child.pid as number))
  }, 250)
  await Promise.all(tokens.map(async (token) => {
    const caller = createCaller(service.address, token)
    while (performance.now() < end) {
      watched.writes.push(await caller.create({ id: 1, name: 'Monstera' }))
      watched.lists.push(await caller.list())
      watched.writes.push(await caller.delete(1))
      watched.live.push(await caller.get('/livez'))
      await delay(pauseMs)
    }
    caller.close()
  }))
  clearInterval(sampler)
  return watched
}
