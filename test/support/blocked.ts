// Blocks a request with a lock in the database, so that later requests are queued.
import { subscribe } from 'node:diagnostics_channel'
import { EventEmitter, once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import type { Test } from 'tap'
import { startApp } from './app.ts'
import { openSession, waitingForLocks } from './database.ts'

const handlers = new EventEmitter()
subscribe('tracing:fastify.request.handler:start', () => { handlers.emit('start') })

/** Sends each request as soon as the handler of the previous request has started. Awaits no response. */
async function send<Result> (requests: Array<() => Promise<Result>>): Promise<Array<Promise<Result>>> {
  const responses = []
  for (const request of requests) {
    const started = once(handlers, 'start')
    responses.push(request())
    await started
  }
  return responses
}

/**
 * Repeats the list until it takes at most 100 ms. After a slower list, the service may read the user's next
 * list on another connection.
 */
async function untilFast (list: () => Promise<unknown>): Promise<void> {
  const startedAt = performance.now()
  await list()
  if (performance.now() - startedAt > 100) await untilFast(list)
}

/**
 * `sendBlocked` takes the lock and sends requests. The first request waits for the lock, and the others are
 * queued. `unblock` releases the lock.
 */
export async function startBlocked (
  t: Test, environment: Record<string, string> = {}, lock = 'lock table plants in exclusive mode'
) {
  const app = await startApp(t, environment)
  const alice = await app.as('alice')
  await untilFast(alice.list)
  const client = await openSession(t, app.url)

  /** Waits until a PostgreSQL process waits for the lock. Returns the id of this process. */
  async function findBlocked (): Promise<number> {
    for (;;) {
      const { rows: [blocked] } = await client.query(waitingForLocks)
      if (blocked !== undefined) return blocked.pid
      await delay(10)
    }
  }
  return {
    ...app,
    alice,
    client,
    findBlocked,
    sendBlocked: async <Result>(...requests: Array<() => Promise<Result>>) => {
      await client.query(`begin; ${lock}`)
      const [first] = await send(requests.slice(0, 1)) as [Promise<Result>]
      await findBlocked()
      return [first, ...await send(requests.slice(1))]
    },
    unblock: () => client.query('commit')
  }
}
