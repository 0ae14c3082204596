// Measures requests that list 100,000 plants without a limit.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import http from 'node:http'
import { connect } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { table } from '../test/support/table.ts'
import { memoryMiB } from '../test/support/processes.ts'
import { median, quantile, spread, type Duration } from './measure.ts'
import { collector, start, withClient, type Contender, type Postgres } from './running.ts'

export const plants = 100_000

export const fill = `truncate plants;
  insert into plants (owner, id, name, tag)
    select '${collector.username}', id, 'Monstera deliciosa ' || id, case when id % 2 = 0 then 'indoor' end
    from generate_series(1, ${plants}) id`

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

/** Requests a list and reads a chunk of at most 64 KiB every 40 ms. */
async function slowReader (url: string, token: string) {
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  socket.write('GET /plants HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n' +
    `Authorization: Bearer ${token}\r\n\r\n`)
  socket.on('data', async () => {
    socket.pause()
    await delay(40)
    socket.resume()
  })
  await once(socket, 'close')
}

async function memoryGrowth (pid: number, url: string, token: string, readers: number) {
  const before = memoryMiB(pid, 'VmRSS')
  writeFileSync(`/proc/${pid}/clear_refs`, '5') // Resets VmHWM, the peak of memory.
  await Promise.all(Array.from({ length: readers }, () => slowReader(url, token)))
  return memoryMiB(pid, 'VmHWM') - before
}

/** Measures the latency of `/livez` while wrk reads lists at full speed. */
async function stall (url: string, token: string, seconds: number) {
  const reader = spawn('wrk', [
    '-t', '1', '-c', '1', '-d', `${seconds}s`, '-H', `Authorization: Bearer ${token}`, `${url}/plants`
  ], { stdio: 'ignore' })
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

/** Starts a new process for each measurement, because memory grows most in a fresh process. */
async function measure (databaseUrl: string, contender: Contender, seconds: number) {
  await using running = await start(contender, databaseUrl)
  const { pids: [pid = 0], url } = running
  const { token } = collector
  const [one, fifty] = [await memoryGrowth(pid, url, token, 1), await memoryGrowth(pid, url, token, 50)]
  const lists: Array<Awaited<ReturnType<typeof timedList>>> = []
  for (let count = 0; count < 4; count++) lists.push(await timedList(url, token))
  const { p99, max } = await stall(url, token, seconds)
  return {
    firstByte: median(lists.map((list) => list.firstByte)),
    total: median(lists.map((list) => list.total)),
    one,
    fifty,
    p99,
    max
  }
}

type Measured = Awaited<ReturnType<typeof measure>>

const columns = {
  firstByte: 'first byte, ms',
  total: 'whole list, ms',
  one: 'growth, 1 slow reader, MiB',
  fifty: '50 slow readers, MiB',
  p99: '/livez p99, ms',
  max: 'max, ms'
}

export async function unbounded (postgres: Postgres, contenders: Contender[], { seconds, rounds }: Duration) {
  const runs = contenders.map((contender) => ({ contender, past: [] as Measured[] }))
  for (const { contender: { name } } of runs) {
    await withClient(postgres.url(name), async (client) => {
      await client.query(fill)
      await client.query('vacuum analyze plants')
    })
  }
  for (let round = 0; round < rounds; round++) {
    for (const { contender, past } of runs) {
      past.push(await measure(postgres.url(contender.name), contender, seconds))
    }
  }
  return table(['', ...Object.values(columns)], runs.map(({ contender: { title }, past }) =>
    [title, ...Object.keys(columns).map((column) =>
      spread(past.map((figures) => figures[column as keyof Measured])))]))
}
