// Requests that have to wait, and so go together.
import { subscribe } from 'node:diagnostics_channel'
import { EventEmitter, once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import type { Test } from 'tap'
import { startApp } from './app.ts'
import { waitingForLocks } from './database.ts'

const handlers = new EventEmitter()
subscribe('tracing:fastify.request.handler:start', () => { handlers.emit('start') })

/** Sends requests and returns once their handlers have begun, in the same order. */
async function send<Result> (requests: Array<() => Promise<Result>>): Promise<Array<Promise<Result>>> {
  const responses = []
  for (const request of requests) {
    const started = once(handlers, 'start')
    responses.push(request())
    await started
  }
  return responses
}

/** An app whose first request waits for the database, and the others for it, until it is told to let go. */
export async function startBlocked (
  t: Test, environment: Record<string, string> = {}, lock = 'lock table plants in exclusive mode'
) {
  const app = await startApp(t, environment)
  const alice = await app.as('alice')
  await alice.list()
  const client = new pg.Client(app.url)
  await client.connect()
  t.teardown(() => client.end())

  /** The process that works for whoever waits for the lock. */
  async function findBlocked (): Promise<number> {
    for (;;) {
      const { rows: [waiting] } = await client.query(waitingForLocks)
      if (waiting !== undefined) return waiting.pid
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

/**
 * Does something to each of the plants 0 to 3, the first of them by itself and
 * the others as a batch, while a lock on 0 and 2 holds them up: by the order of
 * the key the batch then has 1 in hand, but not 3. Resolves with their responses.
 * 3 is asked for but briefly: after a second PostgreSQL looks for deadlocks, and
 * would give up the batch.
 */
export async function runInKeyOrder<Result> (
  t: Test, url: string, act: (id: number) => Promise<Result>, lock: (ids: number[]) => string
): Promise<Result[]> {
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  await client.query(`begin; ${lock([0, 2])}`)
  const areWaiting = async (processes: number) => {
    while ((await client.query(waitingForLocks)).rowCount !== processes) await delay(10)
  }
  const first = act(0)
  await areWaiting(1)
  const responses = [first, ...[3, 2, 1].map(act)]
  await areWaiting(2)
  await t.resolves(client.query(`set local lock_timeout = '100ms'; ${lock([3])}`))
  await client.query('rollback')
  return Promise.all(responses)
}
