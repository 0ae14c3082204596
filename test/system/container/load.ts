import { EventEmitter, once } from 'node:events'
import { Agent, request, type IncomingMessage } from 'node:http'
import { text } from 'node:stream/consumers'
import type { Test } from 'tap'

type Options = {
  url: string
  token: string
  callers?: number
  /** A caller ends when the service says so (`Connection: close`), instead of opening another connection. */
  oneConnection?: boolean
}

/**
 * Callers that create, list and delete, each on a connection it keeps, each sending when the last answer is there.
 * `stop` gives what went wrong and the plants that must be stored now: what was acknowledged counts, nothing else.
 */
export function startLoad (t: Test, { url, token, callers = 8, oneConnection = false }: Options) {
  const events = new EventEmitter()
  const failures: string[] = []
  const stored = new Map<number, string>()
  let answered = 0
  let told = 0
  const over = new AbortController()
  t.teardown(() => over.abort())

  async function call (agent: Agent, method: string, path: string, expected: number, body?: unknown) {
    const answer = await send(agent, url, token, method, path, body)
    if (answer.status !== expected) throw new Error(`${answer.status} ${answer.body}`)
    answered++
    return answer.connection === 'close'
  }

  async function caller (number: number) {
    const agent = new Agent({ keepAlive: true, maxSockets: 1 })
    for (let id = number * 1_000_000; !over.signal.aborted; id++) {
      const plant = { id, name: `plant ${id}` }
      const steps: Array<[string, () => Promise<boolean>]> = [
        ['create', async () => {
          const closing = await call(agent, 'POST', '/plants', 200, plant)
          stored.set(id, plant.name)
          return closing
        }],
        ['list', () => call(agent, 'GET', '/plants?limit=10', 200)],
        ['delete', async () => {
          if (id % 10 === 0) return false
          const closing = await call(agent, 'DELETE', `/plants/${id}`, 204)
          stored.delete(id)
          return closing
        }]
      ]
      for (const [name, step] of steps) {
        try {
          const closing = await step()
          if (!closing) continue
          told++
          events.emit('told')
          if (oneConnection) return agent.destroy()
        } catch (error) {
          failures.push(`${name} ${id}: ${(error as Error).message}`)
          if (oneConnection) return agent.destroy()
        }
      }
    }
    agent.destroy()
  }

  const all = Promise.all(Array.from({ length: callers }, (_, number) => caller(number + 1)))
  const result = () => ({
    answered,
    told,
    failures,
    stored: [...stored].sort(([a], [b]) => a - b).map(([, name]) => ({ name }))
  })
  return {
    /** The first answer that announces the end of its connection. */
    firstTold: () => once(events, 'told'),
    /** With `oneConnection`: when every caller has been told. */
    ended: async () => { await all; return result() },
    stop: async () => { over.abort(); await all; return result() }
  }
}

async function send (agent: Agent, url: string, token: string, method: string, path: string, body?: unknown) {
  const outgoing = request(url + path, {
    agent,
    method,
    headers: { authorization: `Bearer ${token}`, ...body === undefined ? {} : { 'content-type': 'application/json' } }
  })
  // A cut connection may be told of twice; the first time is the one that counts.
  outgoing.on('error', () => {})
  outgoing.end(body === undefined ? undefined : JSON.stringify(body))
  const [answer] = await once(outgoing, 'response') as [IncomingMessage]
  return { status: answer.statusCode, connection: answer.headers.connection, body: await text(answer) }
}
