// Runs one attack in a separate process, so that the attack does not slow down the clients of other users.
import { attacks } from './attack-table.ts'
import { counts, first, type Target } from './flood.ts'

// After 'stop', the process sends its counts of responses and ends. It first waits for a response, unless the
// attack reads no responses.
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
