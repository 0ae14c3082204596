// Runs one attacker in a process of its own, so that its cost does not slow down the other clients.
import { attacks } from './attack-table.ts'
import { counts, first, type Target } from './flood.ts'

// After 'stop' the process sends its counts. First it waits for one response, unless the attack reads none.
process.on('message', async (message: 'stop' | { index: number, target: Target }) => {
  if (message !== 'stop') {
    attacks[message.index]?.start(message.target)
    process.send?.('started')
    return
  }
  await first.promise
  process.send?.(counts, () => process.exit())
})
process.on('disconnect', () => process.exit())
