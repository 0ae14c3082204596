// Records when a Node program handles requests. Preload it: NODE_OPTIONS='--import <this file>'. When the
// program ends, writes the records to the file that MARKS names. Needs Linux.
import { openSync, readSync, writeFileSync } from 'node:fs'
import { subscribe } from 'node:diagnostics_channel'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { performance, PerformanceObserver } from 'node:perf_hooks'
import { requestContext, statementEvents } from '../../src/events.ts'

/** Times are in ms, of the clock that all processes of the machine share. */
export interface Marks {
  requests: Array<{ id: number, start: number, end: number }>
  statements: Array<{ name: string, start: number, end: number, ids: number[] }>
  collections: Array<{ start: number, end: number }>
  /** Time, idle time of the event loop so far, and time in which its thread waited for a core so far. */
  samples: Array<[time: number, idle: number, waited: number]>
}

const toShared = Number(process.hrtime.bigint()) / 1e6 - performance.now()
const now = () => performance.now() + toShared

// Keep the records outside of V8's heap: objects that stay would make each garbage collection longer.
const log = new Float64Array(2 ** 24)
let length = 0
const [request, response, statement, sample] = [1, 2, 3, 4]
const names: string[] = []
const collections: Marks['collections'] = []

function record (...numbers: number[]): void {
  log.set(numbers, length)
  length += numbers.length
}

// The second number of this file is the time in ns in which the thread was ready to run, but had no core.
const schedule = openSync(`/proc/self/task/${process.pid}/schedstat`, 'r')
const buffer = Buffer.alloc(64)

function takeSample (time: number): void {
  const text = buffer.toString('latin1', 0, readSync(schedule, buffer, 0, 64, 0))
  record(sample, time, performance.nodeTiming.idleTime, Number(text.split(' ')[1]) / 1e6)
}

subscribe('http.server.request.start', (message) => {
  const event = message as { request: IncomingMessage, response: ServerResponse }
  const id = Number(event.request.headers['x-load-id'])
  if (Number.isNaN(id)) return
  const start = now()
  record(request, id, start)
  takeSample(start)
  requestContext.enterWith(id)
  event.response.on('finish', () => {
    const end = now()
    record(response, id, end)
    takeSample(end)
  })
})

statementEvents.subscribe(({ name, startedAt, requestContext }) => {
  const ids = [requestContext].flat().filter((id) => typeof id === 'number')
  if (!names.includes(name)) names.push(name)
  const end = now()
  record(statement, names.indexOf(name), startedAt + toShared, end, ids.length, ...ids)
  takeSample(end)
})

new PerformanceObserver((list) => {
  for (const { startTime, duration } of list.getEntries()) {
    const start = startTime + toShared
    collections.push({ start, end: start + duration })
  }
}).observe({ entryTypes: ['gc'] })

process.on('exit', () => {
  const marks: Marks = { requests: [], statements: [], collections, samples: [] }
  const requests = new Map<number, Marks['requests'][0]>()
  for (let at = 0; at < length;) {
    const [kind = 0, first = 0, start = 0, third = 0, count = 0] = log.slice(at, at + 5)
    if (kind === request) requests.set(first, { id: first, start, end: NaN })
    else if (kind === response) (requests.get(first) as Marks['requests'][0]).end = start
    else if (kind === sample) marks.samples.push([first, start, third])
    else {
      const ids = Array.from(log.slice(at + 5, at + 5 + count))
      marks.statements.push({ name: names[first] as string, start, end: third, ids })
    }
    at += kind === sample ? 4 : kind === statement ? 5 + count : 3
  }
  marks.requests = [...requests.values()]
  writeFileSync(process.env.MARKS as string, JSON.stringify(marks))
})
