// What one attacker costs the others, the memory and the log: one user, or somebody without a token.
import { fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from '../../support/database.ts'
import { memoryMiB } from '../../support/processes.ts'
import { asShipped, unmeasured, type Program, type Scope } from '../../support/program.ts'
import { round } from '../../support/table.ts'
import type { Counts } from './attacker.ts'
import { createCaller, type Answer } from './caller.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { quantile, type Cell, type Report } from './report.ts'

const { serve } = unmeasured

export interface AttacksOptions {
  /** Of the connections of each attack. */
  share: number
  /** The first of each; all of them without it. */
  kinds?: string[]
  /** How long each is watched, and how long it is over before memory is looked at again. */
  watchMs: number
  restMs: number
}

interface Attack {
  kind: string
  connections: number
  /** What keeps it from costing more. */
  bound: string
  /** What the attacker has. */
  plants?: string
}

const oneLarge = 'select 1, repeat(\'n\', 1040000), null'
const longerThanBuffers = `select id, repeat('n', 512), repeat('t', 512) from generate_series(1, 20000) id
  union all select id, repeat('n', 1000000), null from generate_series(20001, 20010) id`

export const all: Attack[] = [
  { kind: '17 times the script of the page, unread', connections: 1000, bound: 'the page\'s files in memory once, one answer of a connection at a time, one in a turn' },
  { kind: 'heads, as many as a piece has room for', connections: 1000, bound: '16 behind an answer' },
  { kind: 'bodies without a token', connections: 100, bound: 'what is dropped is read 8 pieces in a turn' },
  { kind: 'bodies of colons', connections: 100, bound: 'each byte is looked at once; half of the time is left to others' },
  { kind: 'large creates', connections: 20, bound: '32 MiB from when they are read until they are answered' },
  { kind: 'large creates', connections: 100, bound: 'the same' },
  { kind: 'large lists', connections: 100, bound: 'one at a time, half of the time is left to others, 32 MiB not gone out', plants: oneLarge },
  { kind: 'large lists', connections: 900, bound: 'the same', plants: oneLarge },
  { kind: 'three long lists each, unread', connections: 100, bound: 'the same', plants: longerThanBuffers },
  { kind: 'bodies one byte short', connections: 1500, bound: 'the same, 200 wait' },
  { kind: 'unknown tokens', connections: 4000, bound: '8 begun in a turn, known ones first, `MAX_QUEUED`' },
  { kind: 'malformed tokens', connections: 100, bound: '30 lines a kind, then one a second' }
]

// As in the image: what is set there for the C library.
const dockerfile = readFileSync(join(import.meta.dirname, '../../../Dockerfile'), 'utf8')
const [, name, value] = /(MALLOC_\w+)=(\d+)/.exec(dockerfile) as unknown as [string, string, string]
const ofTheImage = { [name]: value }

const others = 5
const pauseMs = 25
const mostP99Ms = 100
const mostLiveMs = 500
const [mostMemoryMiB, mostLeftMiB] = [400, 100]
const mostLinesASecond = 100

const head = ['attack', 'bound', 'writes, ms', 'lists, ms', '/livez, ms', 'memory before, during, after, MiB',
  'log, lines a second', 'a stop ends with', 'attacker\'s answers']

/** Each beside others who ask for little. */
export async function attacks (scope: Scope, postgres: Postgres, options: AttacksOptions): Promise<Report> {
  const breaches: string[] = []
  const misses: string[] = []
  const rows: Cell[][] = []
  const chosen = options.kinds?.map((name) => all.find(({ kind }) => kind === name) as Attack) ?? all
  for (const [index, attack] of chosen.entries()) {
    const seen = await bear(scope, postgres, `mallory-${index}`, attack, options)
    const { alone, during, left, lines, code, closed, counts } = seen
    const title = `${attack.kind}, ${attack.connections * options.share} connections`
    if (index === 0) rows.push(['none', '', ...times(alone), round(alone.memory), '', '', ''])
    const memory = [alone.memory, during.memory, left].map(round).join(', ')
    rows.push([title, attack.bound, ...times(during), memory, round(lines), String(code), tell(counts)])

    const answers = [...during.writes, ...during.lists, ...during.live]
    const odd = answers.filter(({ status }) => status !== 200 && status !== 204)
    const example = `such as ${odd[0]?.outcome} ${odd[0]?.status} ${odd[0]?.body}`
    if (odd.length > 0) breaches.push(`${title}: ${odd.length} of the others' requests failed, ${example}`)
    if (closed > 0) breaches.push(`${title}: ${closed} healthy connections were closed`)
    if (code !== 0) breaches.push(`${title}: a stop meanwhile ended with ${code}`)
    if (lines > mostLinesASecond) breaches.push(`${title}: ${round(lines)} lines of log a second`)
    const beyond: Array<[what: string, figure: number, most: number]> = [
      ['writes of others at the 99th percentile, ms:', p(during.writes, 0.99), mostP99Ms],
      ['lists of others at the 99th percentile, ms:', p(during.lists, 0.99), mostP99Ms],
      ['/livez, ms:', p(during.live, 1), mostLiveMs],
      ['memory, MiB:', during.memory, mostMemoryMiB],
      ['memory afterwards, MiB:', left, alone.memory + mostLeftMiB]
    ]
    for (const [what, figure, most] of beyond) if (figure > most) misses.push(`${title}: ${what} ${round(figure)}`)
  }
  const notes = [`Of ${others} others, each with a create, a list, a delete and /livez in turn and ${pauseMs} ms ` +
    'in between: median / 99th percentile / worst.']
  return { title: 'One attacker, and what others notice', head, rows, notes, breaches, misses }
}

/** To be run before it begins. */
export function plantsFor ({ plants }: Attack, owner: string): string[] {
  if (plants === undefined) return []
  const named = `(${plants}) as plant (id, name, tag)`
  return [`insert into plants (owner, id, name, tag) select '${owner}', * from ${named}`, 'checkpoint']
}

/** In a process of its own; told to stop it tells what came back. */
export async function beginAttack (
  scope: Scope, { kind, connections }: Attack, address: string, token: string
): Promise<ChildProcess> {
  const words = [kind, address, token, String(connections)]
  // By itself it would have what the tests have loaded before them, which takes four times as long.
  const options = { execPath: 'env', execArgv: [...asShipped, process.execPath] }
  const attacker = fork(join(import.meta.dirname, 'attacker.ts'), words, options)
  scope.teardown(() => { attacker.kill() })
  await once(attacker, 'message')
  return attacker
}

/** The same attack twice on one service: watched, and while it is told to stop. */
async function bear (scope: Scope, postgres: Postgres, mallory: string, attack: Attack, options: AttacksOptions) {
  const { watchMs, restMs, share } = options
  const users = Array.from({ length: others }, (_, user) => `other of ${mallory} ${user}`)
  const [token = '', ...tokens] = await createUsers(postgres.url, [mallory, ...users])
  for (const statement of plantsFor(attack, mallory)) await sql(postgres.url, statement)
  const service = await serve(scope, { ...ofTheImage, DATABASE_URL: postgres.url, DRAIN_DELAY: '0' })
  const connections = attack.connections * share
  const begin = () => beginAttack(scope, { ...attack, connections }, service.address, token)

  await watch(service, tokens, Math.min(watchMs, 1000))
  const alone = await watch(service, tokens, watchMs)
  const attacker = await begin()
  const linesBefore = service.log.length
  const during = await watch(service, tokens, watchMs)
  const lines = (service.log.length - linesBefore) / Math.max(watchMs / 1000, 1)
  attacker.send('stop')
  const [counts] = await once(attacker, 'message') as [Counts]
  await delay(restMs)
  const left = memoryMiB(service.child.pid as number)

  const again = await begin()
  await watch(service, tokens, watchMs / 4)
  service.child.kill('SIGTERM')
  const [code] = await service.exited
  again.kill()
  const closed = service.log.filter(({ msg }) => String(msg).includes('silent')).length
  return { alone, during, left, lines, code, closed, counts }
}

const p = (answers: Answer[], fraction: number) => quantile(answers.map(({ ms }) => ms), fraction)
const tell = (counts: Counts) => Object.entries(counts).map(([status, count]) => `${count} × ${status}`).join(', ')

interface Watched { writes: Answer[], lists: Answer[], live: Answer[], memory: number }

const times = ({ writes, lists, live }: Watched) =>
  [writes, lists, live].map((answers) => [0.5, 0.99, 1].map((part) => round(p(answers, part))).join(' / '))

/** What others are told meanwhile, and how long it takes. */
async function watch (service: Program, tokens: string[], ms: number): Promise<Watched> {
  const watched: Watched = { writes: [], lists: [], live: [], memory: 0 }
  const end = performance.now() + ms
  const look = () => { watched.memory = Math.max(watched.memory, memoryMiB(service.child.pid as number)) }
  const sampler = setInterval(look, 100)
  look()
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
