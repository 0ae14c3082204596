// The process of one attacker. Its own process keeps its cost out of the response times of other users.
import { attacks } from './attack-table.ts'
import { counts, first, type Target } from './flood.ts'

// Told to stop, it reports its responses: at least one, unless the attack reads none.
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
