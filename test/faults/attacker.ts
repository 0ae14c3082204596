// One attacker: a process of its own, so that what it costs does not show in the times of others.
import { Agent, request, type OutgoingHttpHeaders } from 'node:http'
import { createToken } from '../../src/access/token-format.ts'

export type Attack = 'large creates' | 'large lists' | 'unknown tokens'

/** What came back so far: how many of each status, 0 for none. */
export type Counts = Record<number, number>

const [kind, address = '', token, connections] = process.argv.slice(2)
const agent = new Agent({ keepAlive: true, maxSockets: Infinity })
const counts: Counts = {}
const name = 'n'.repeat(1_040_000)
const answered = Promise.withResolvers<void>()
let id = 1000

function send (method: string, headers: OutgoingHttpHeaders, body?: string): Promise<void> {
  return new Promise((resolve) => {
    const done = (status = 0) => {
      counts[status] = (counts[status] ?? 0) + 1
      answered.resolve()
      resolve()
    }
    request(`${address}/plants`, { agent, method, headers }, (response) => {
      response.resume().on('close', () => done(response.statusCode))
    }).on('error', () => done()).end(body)
  })
}

const authorization = `Bearer ${token}`
const attacks: Record<Attack, () => Promise<void>> = {
  'large creates': () => {
    const body = JSON.stringify({ id: id++, name })
    return send('POST', { authorization, 'content-type': 'application/json', 'content-length': body.length }, body)
  },
  'large lists': () => send('GET', { authorization }),
  'unknown tokens': () => send('GET', { authorization: `Bearer ${createToken()}` })
}

// Told to stop it tells what came back, one answer at least.
process.on('message', async () => {
  await answered.promise
  process.send?.(counts, () => process.exit())
})
process.on('disconnect', () => process.exit())
process.send?.('begins')
await Promise.all(Array.from({ length: Number(connections) }, async () => {
  for (;;) await attacks[kind as Attack]()
}))
