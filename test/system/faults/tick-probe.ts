// Writes a line to stderr for each tick of at least 10 ms of processor time. `node --import` loads this file.

// The timer fires after each tick that is longer than 2 ms. So a line covers at most one long tick.
// Linux counts the processor time of a thread in steps of 4 ms. So a time can be wrong by 4 ms.
let before = process.threadCpuUsage()
setInterval(() => {
  const { user, system } = process.threadCpuUsage(before)
  const ms = (user + system) / 1000
  if (ms >= 10) process.stderr.write(`tick ${ms}\n`)
  before = process.threadCpuUsage()
}, 2).unref()
