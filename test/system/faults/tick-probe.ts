// `node --import` loads this probe into the service. The probe records each tick of the event loop that uses
// at least 10 ms of processor time.
import { appendFileSync, writeFileSync } from 'node:fs'

// After a tick longer than the interval the timer runs before the next tick. So between two runs there is at
// most one long tick, and before it short ticks of at most the interval in total. The result is no more exact
// than 4 ms, because Linux counts the processor time of a thread in such steps.
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
