// A list without a limit, of 100,000 plants.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import http from 'node:http'
import { connect } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { median, memoryMiB, quantile } from './measure.ts'

const plants = 100_000

export const fill = (collector: string) => `truncate plants;
  insert into plants (owner, id, name, tag)
    select '${collector}', id, 'Monstera deliciosa ' || id, case when id % 2 = 0 then 'indoor' end from generate_series(1, ${plants}) id`

async function timedList (url: string, token: string) {
  const began = performance.now()
  const request = http.get(`${url}/plants`, { headers: { authorization: `Bearer ${token}` } })
  const [response] = await once(request, 'response') as [http.IncomingMessage]
  const chunks: Buffer[] = []
  let firstByte = NaN
  for await (const chunk of response) {
    if (chunks.length === 0) firstByte = performance.now() - began
    chunks.push(chunk)
  }
  const total = performance.now() - began
  const { length } = JSON.parse(Buffer.concat(chunks).toString())
  if (length !== plants) throw new Error(`${length} plants listed instead of ${plants}`)
  return { firstByte, total }
}

/** Reads a chunk, of 64 KiB at the most, every 40 ms. */
async function slowReader (url: string, token: string) {
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  socket.write(`GET /plants HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer ${token}\r\n\r\n`)
  socket.on('data', async () => {
    socket.pause()
    await delay(40)
    socket.resume()
  })
  await once(socket, 'close')
}

async function memoryGrowth (pid: number, url: string, token: string, readers: number) {
  const before = memoryMiB(pid, 'VmRSS')
  writeFileSync(`/proc/${pid}/clear_refs`, '5') // resets the high-water mark
  await Promise.all(Array.from({ length: readers }, () => slowReader(url, token)))
  return memoryMiB(pid, 'VmHWM') - before
}

/** How long the smallest request takes, sent all the time, while lists are read at full speed by another process. */
async function stall (url: string, token: string, seconds: number) {
  const reader = spawn('wrk', ['-t', '1', '-c', '1', '-d', `${seconds}s`, '-H', `Authorization: Bearer ${token}`, `${url}/plants`], { stdio: 'ignore' })
  const ended = once(reader, 'exit')
  const agent = new http.Agent({ keepAlive: true })
  const taken: number[] = []
  while (reader.exitCode === null) {
    const began = performance.now()
    const [response] = await once(http.get(`${url}/livez`, { agent }), 'response') as [http.IncomingMessage]
    await once(response.resume(), 'end')
    taken.push(performance.now() - began)
    await delay(1)
  }
  await ended
  agent.destroy()
  return { p99: quantile(taken, 0.99), max: Math.max(...taken) }
}

export async function unbounded (pid: number, url: string, token: string, { seconds, rounds }: { seconds: number, rounds: number }) {
  // First, because a process that has just started has the most to grow.
  const [oneReader, fiftyReaders] = [await memoryGrowth(pid, url, token, 1), await memoryGrowth(pid, url, token, 50)]
  const lists = []
  for (let round = 0; round < rounds * 4; round++) lists.push(await timedList(url, token))
  return {
    firstByte: median(lists.map((list) => list.firstByte)),
    total: median(lists.map((list) => list.total)),
    oneReader,
    fiftyReaders,
    ...await stall(url, token, seconds)
  }
}
