// Records the service's ticks of at least 10 ms of processor time. `node --import` loads this file.
import { appendFileSync, writeFileSync } from 'node:fs'

// The timer fires after each tick that is longer than `intervalMs`. So a record covers at most one long tick.
// Linux counts the processor time of a thread in steps of 4 ms. So a recorded time can be wrong by 4 ms.
const intervalMs = 2
const recordedMs = 10

const file = process.env.TICK_FILE
const used = () => {
  const { user, system } = process.threadCpuUsage()
  return (user + system) / 1000
}
if (file !== undefined) {
  writeFileSync(file, '')
  let before = used()
  setInterval(() => {
    const now = used()
    if (now - before >= recordedMs) appendFileSync(file, `${Date.now()} ${now - before}\n`)
    before = now
  }, intervalMs).unref()
}
