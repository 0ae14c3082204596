// Sends a load like load.lua, but records each request. `slowest.ts` forks this program and sends it orders.
import { connect } from 'node:net'
import { performance } from 'node:perf_hooks'
import { setTimeout as delay } from 'node:timers/promises'
import type { Load } from '../measure.ts'

export interface Order {
  url: string
  load: Load
  tokens: string[]
  /** The first id that the load deletes. The load creates plants with much larger ids. */
  firstId: number
  /** How long a connection pauses before a request, in ms on average. */
  pauseMs: number
  seconds: number
}

/** Times are in ms, of the clock that all processes of the machine share. */
export interface Sent { id: number, sent: number, received: number }

const toShared = Number(process.hrtime.bigint()) / 1e6 - performance.now()
const now = () => performance.now() + toShared
const anyOf = (count: number) => Math.floor(Math.random() * count)

/** Returns a function that makes the text of the next request. */
function createRequests ({ load, tokens, firstId }: Order): (id: number) => string {
  let [deleted, created] = [firstId, firstId + 100_000_000]
  const head = (line: string, user: number, id: number) => `${line} HTTP/1.1\r\nHost: localhost\r\n` +
    `Authorization: Bearer ${tokens[user]}\r\nx-load-id: ${id}\r\n`
  const operations = {
    list: (id: number) => head('GET /plants', anyOf(1000), id) + '\r\n',
    create (id: number) {
      const body = `{"id":${++created},"name":"Monstera deliciosa","tag":"indoor"}`
      return `${head('POST /plants', 1000 + anyOf(1000), id)}Content-Type: application/json\r\n` +
        `Content-Length: ${body.length}\r\n\r\n${body}`
    },
    delete: (id: number) => head(`DELETE /plants/${++deleted}`, 1000 + deleted % 1000, id) + '\r\n'
  }
  return (id) => {
    const dice = anyOf(100)
    const mixed = dice < 80 ? 'list' : dice < 95 ? 'create' : 'delete'
    return operations[load === 'mix' ? mixed : load](id)
  }
}

/** Whether the text is a whole response. */
function isComplete (text: string): boolean {
  const body = text.indexOf('\r\n\r\n') + 4
  const length = /content-length: (\d+)/i.exec(text)?.[1] ?? '0'
  return body > 3 && text.length >= body + Number(length)
}

async function send (order: Order): Promise<Sent[]> {
  const { hostname, port } = new URL(order.url)
  const end = performance.now() + order.seconds * 1000
  const requests: Sent[] = []
  const next = createRequests(order)

  async function client () {
    const socket = connect(Number(port), hostname).setNoDelay().setEncoding('latin1')
    let onResponse: () => void
    let response = ''
    let request: Sent
    socket.on('data', (chunk: string) => {
      request.received = now()
      response += chunk
      if (isComplete(response)) onResponse()
    })
    while (performance.now() < end) {
      await delay(-order.pauseMs * Math.log(1 - Math.random()))
      request = { id: requests.length, sent: 0, received: 0 }
      requests.push(request)
      const text = next(request.id)
      response = ''
      const responded = new Promise<void>((resolve) => { onResponse = resolve })
      request.sent = now()
      socket.write(text)
      await responded
      if (!/^HTTP\/1\.1 20[04] /.test(response)) throw new Error(response)
    }
    socket.destroy()
  }

  await Promise.all(Array.from({ length: 64 }, client))
  return requests
}

process.on('message', async (order: Order) => { process.send?.(await send(order)) })
