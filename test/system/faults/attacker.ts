// Runs one attack in a separate process, so that the attack does not slow down the test's other clients.
import { attacks } from './attack-table.ts'
import { counts, first, type Target } from './flood.ts'

process.once('message', ({ index, target }: { index: number, target: Target }) => {
  process.once('message', async () => {
    // `first` resolves at the first response, or at once if the attack reads no responses.
    await first.promise
    process.send?.(counts, () => process.exit())
  })
  attacks[index]?.start(target)
  process.send?.('started')
})
process.on('disconnect', () => process.exit())
