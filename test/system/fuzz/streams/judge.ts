// The rule: what ran is a prefix of what was sent, in order, each once. An executed write has its response,
// or the connection ended.
import { checkError } from '../checks.ts'
import { canary, seeds, type Item } from './items.ts'
import type { Observation } from './play.ts'

/** Beyond this number of ignored requests, the service ends the connection at once. */
const maxIgnored = 100

/** Throws unless the responses and the `stored` plants (id and name) follow the rule. */
export function judge (
  items: Item[], seen: Observation, stored: Map<bigint, string>, large: string, inShutdown: boolean
): void {
  const { responses, complete, begun, inTurn, hasLeft, endedFirst } = seen
  const expect = (isTrue: boolean, what: string) => { if (!isTrue) throw new Error(what) }
  const isSuccess = ({ status = 500 }: Item) => status < 300
  const isExecuted = ({ effect }: Item) => effect !== undefined &&
    ('created' in effect ? stored.get(effect.created) === effect.name : !stored.has(effect.deleted))
  const lastAt = items.findIndex(({ end }) => end === 'last')
  const runnable = items.slice(0, lastAt < 0 ? complete : Math.min(complete, lastAt + 1))
  const ran = runnable.findLastIndex(isExecuted) + 1
  const hasTunnel = items.slice(0, begun).some(({ text }) => text.includes('CONNECT'))
  const mayBeCut = hasLeft || hasTunnel || begun > maxIgnored

  // The stored plants are those after the first `ran` items.
  const plants = new Map(seeds)
  const names = () => [...plants].sort(([a], [b]) => a < b ? -1 : 1).map(([, name]) => name)
  const lists: string[][] = []
  for (const [index, item] of runnable.entries()) {
    lists.push(names())
    if (index < ran && isSuccess(item) && item.effect) {
      if ('created' in item.effect) plants.set(item.effect.created, item.effect.name)
      else plants.delete(item.effect.deleted)
    }
  }
  expect(plants.size === stored.size && [...plants].every(([id, name]) => stored.get(id) === name),
    `expected ${[...plants.keys()]}, stored ${[...stored.keys()]}`)
  expect(stored.has(canary), 'a part of a body ran as a request')

  for (const [index, { status, headers, body, isEarly }] of responses.entries()) {
    const item = items[index]
    const isClosing = headers.connection === 'close'
    if (item === undefined || index >= begun) throw new Error(`a response too many: ${status}`)
    const at = `response ${index} (${status}) to ${item.text.slice(0, 40)}: `
    expect(index === responses.length - 1 || !isClosing, `${at}another one follows, in spite of close`)
    expect(isClosing || (item.end !== 'last' && !isEarly), `${at}not closing`)
    if (status >= 400) {
      if (!item.isHead) checkError({ status, headers, body })
      expect(status === item.status || item.status === undefined || index >= complete, `${at}failed`)
      continue
    }
    expect(status === item.status, `${at}expected ${item.status}`)
    expect(item.effect === undefined || index < ran, `${at}was not executed`)
    if (/^\s*GET \/plants/.test(item.text)) {
      const isLarge = body === large
      expect(isLarge || JSON.stringify(JSON.parse(body).map(({ name }: { name: string }) => name)) ===
        JSON.stringify(lists[index] ?? lists.at(-1)), `${at}an unexpected list`)
    }
  }
  if (mayBeCut) return
  expect(!seen.isMidway, 'an incomplete response')
  expect(ran <= responses.length, `${ran} items ran, but there are ${responses.length} responses`)
  if (inShutdown) return
  const due = Math.min(inTurn, runnable.length)
  expect(responses.length >= due, `${due} items were sent in turn, ${responses.length} responses`)
  const isOpen = items.slice(0, begun).every(({ end }) => end === 'open')
  const isIdle = isOpen && Math.min(inTurn, complete) === begun
  expect(!isIdle || !endedFirst, 'the service ended an idle connection')
}
