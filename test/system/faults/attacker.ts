// Runs one attacker in a process of its own, so that its work does not slow down the clients of other users.
import { attacks } from './attack-table.ts'
import { counts, first, type Target } from './flood.ts'

// After 'stop' the process waits for at least one response, then sends its counts and ends. An attack that
// reads no responses does not wait.
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
