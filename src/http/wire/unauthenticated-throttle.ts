// Strangers, connections on which no good token has come yet: their requests are begun a few at a time.
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { FairQueue } from '../../scheduling/fair-queue.ts'
import { Schedule } from '../../scheduling/drain-scheduler.ts'
import { unauthenticatedPerTick } from '../limits.ts'

/** `stranger`: the address of one on which no good token has come yet. */
type Connection = Socket & { stranger?: string | undefined }
type Begin = (request: IncomingMessage, response: ServerResponse) => void

/** To be called for a request with a good token: from now on nothing on its connection waits here. */
export function markAuthenticated (connection: Connection): void {
  connection.stranger = undefined
}

/**
 * One turn of the event loop may bring a thousand requests, and others would wait until all of them
 * have been worked on. Those of strangers wait instead, an address after the other; probes of the paths
 * have a turn of their own, since they come on new connections and perhaps from the same address.
 */
export function throttleUnauthenticated (server: Server, begin: Begin, probes: string[]): void {
  const waiting = new FairQueue<Parameters<Begin>>()
  let begun = 0
  const schedule = new Schedule(() => {
    begun = 0
    while (begun < unauthenticatedPerTick && waiting.weight > 0) {
      const [request, response] = waiting.takeNext() as Parameters<Begin>
      // Nobody would read the answer.
      if (!request.socket.writable) continue
      begun += 1
      begin(request, response)
    }
    if (begun > 0) schedule.soon()
  })

  // Of each as soon as it comes: looked up later, and of some only, the address makes two kinds of
  // sockets of one, and all that Node does with them slower.
  server.on('connection', (socket: Connection) => { socket.stranger = String(socket.remoteAddress) })
  // In the place of Fastify's own listener.
  server.off('request', begin).on('request', (request, response) => {
    const { stranger } = request.socket as Connection
    if (stranger === undefined) return begin(request, response)
    schedule.soon()
    if (begun < unauthenticatedPerTick) {
      begun += 1
      return begin(request, response)
    }
    const kind = probes.includes(request.url as string) ? 'probe' : 'other'
    waiting.add(`${kind} ${stranger}`, [request, response], 1)
  })
}
