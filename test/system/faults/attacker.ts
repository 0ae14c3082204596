// Runs one attack in a separate process, so that the attack does not slow down the test's other clients.
import { attacks } from './attack-table.ts'
import { counts, first, type Target } from './flood.ts'

process.on('message', async (message: 'stop' | { index: number, target: Target }) => {
  if (message !== 'stop') {
    attacks[message.index]?.start(message.target)
    process.send?.('started')
    return
  }
  // `first` resolves at the first response, or at once if the attack reads no responses.
  await first.promise
  process.send?.(counts, () => process.exit())
})
process.on('disconnect', () => process.exit())
