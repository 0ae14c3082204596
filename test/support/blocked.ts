// Blocks a request with a lock in the database, so that later requests are queued.
import { subscribe } from 'node:diagnostics_channel'
import { EventEmitter, once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import type { Test } from 'tap'
import { startApp } from './app.ts'
import { openSession, waitingForLocks } from './database.ts'

const handlers = new EventEmitter()
subscribe('tracing:fastify.request.handler:start', () => { handlers.emit('start') })

/**
 * `sendBlocked` takes the lock and sends requests. The first request waits for the lock, and the others are
 * queued. `unblock` releases the lock.
 */
export async function startBlocked (
  t: Test, environment: Record<string, string> = {}, lock = 'lock table plants in exclusive mode',
  start = startApp
) {
  const app = await start(t, environment)
  const alice = await app.as('alice')
  // After a list of over 100 ms, the service may read the user's next list on another connection.
  for (let since = -Infinity; performance.now() - since > 100;) {
    since = performance.now()
    await alice.list()
  }
  const client = await openSession(t, app.url)

  return {
    ...app,
    alice,
    client,
    /** Sends each request as soon as the handler of the previous request has started. Awaits no response. */
    async sendBlocked<Result> (...requests: Array<() => Promise<Result>>) {
      await client.query(`begin; ${lock}`)
      const responses: Array<Promise<Result>> = []
      for (const request of requests) {
        const started = once(handlers, 'start')
        responses.push(request())
        await started
        if (responses.length > 1) continue
        while ((await client.query(waitingForLocks)).rowCount === 0) await delay(10)
      }
      return responses
    },
    unblock: () => client.query('commit')
  }
}
