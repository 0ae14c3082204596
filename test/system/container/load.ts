import { EventEmitter, once } from 'node:events'
import { Agent, request, type IncomingMessage } from 'node:http'
import { text } from 'node:stream/consumers'
import type { Test } from 'tap'

type Options = {
  url: string
  token: string
  clients?: number
  /**
   * If true, a client ends after a response with `Connection: close` or after a failed request. If false,
   * the clients run until `stop`.
   */
  oneConnection?: boolean
}

/**
 * Starts clients, each with its own connection and one request at a time. `ended` and `stop` both resolve to
 * one result. In this result, `stored` has the plants that must now be stored.
 */
export function startLoad (t: Test, { url, token, clients = 8, oneConnection = false }: Options) {
  const events = new EventEmitter()
  const failures: string[] = []
  const stored = new Map<number, string>()
  let completed = 0
  let closing = 0
  const over = new AbortController()
  t.teardown(() => over.abort())

  async function call (agent: Agent, method: string, path: string, expected: number, body?: unknown) {
    const response = await send(agent, url, token, method, path, body)
    if (response.status !== expected) throw new Error(`${response.status} ${response.body}`)
    completed++
    return response.connection === 'close'
  }

  async function runClient (number: number) {
    const agent = new Agent({ keepAlive: true, maxSockets: 1 })
    for (let id = number * 1_000_000; !over.signal.aborted; id++) {
      const plant = { id, name: `plant ${id}` }
      const steps: Array<[string, () => Promise<boolean>]> = [
        ['create', async () => {
          const closes = await call(agent, 'POST', '/plants', 200, plant)
          stored.set(id, plant.name)
          return closes
        }],
        ['list', () => call(agent, 'GET', '/plants?limit=10', 200)],
        ['delete', async () => {
          if (id % 10 === 0) return false
          const closes = await call(agent, 'DELETE', `/plants/${id}`, 204)
          stored.delete(id)
          return closes
        }]
      ]
      for (const [name, step] of steps) {
        try {
          const closes = await step()
          if (!closes) continue
          closing++
          events.emit('closing')
          if (oneConnection) return agent.destroy()
        } catch (error) {
          failures.push(`${name} ${id}: ${(error as Error).message}`)
          if (oneConnection) return agent.destroy()
        }
      }
    }
    agent.destroy()
  }

  const all = Promise.all(Array.from({ length: clients }, (_, number) => runClient(number + 1)))
  const result = () => ({
    completed,
    closing,
    failures,
    stored: [...stored].sort(([a], [b]) => a - b).map(([, name]) => ({ name }))
  })
  return {
    /** Resolves when the first response with `Connection: close` arrives. */
    firstClosing: () => once(events, 'closing'),
    /** Resolves when all clients have ended. Without `oneConnection`, clients end only after `stop`. */
    ended: async () => { await all; return result() },
    stop: async () => { over.abort(); await all; return result() }
  }
}

async function send (
  agent: Agent, url: string, token: string, method: string, path: string, body?: unknown
) {
  const headers: Record<string, string> = { authorization: `Bearer ${token}` }
  if (body !== undefined) headers['content-type'] = 'application/json'
  const outgoing = request(url + path, { agent, method, headers })
  // `once` handles only the first error. After a cut connection, a second error would crash the process.
  outgoing.on('error', () => {})
  outgoing.end(body === undefined ? undefined : JSON.stringify(body))
  const [response] = await once(outgoing, 'response') as [IncomingMessage]
  return { status: response.statusCode, connection: response.headers.connection, body: await text(response) }
}
