// Runs one attack in a process of its own. In the process with the clients of other users, the attack would
// slow down these clients.
import { attacks } from './attack-table.ts'
import { counts, first, type Target } from './flood.ts'

// After the message 'stop' the process sends its counts of responses and ends. If no response has arrived
// yet, the process first waits for one, unless the attack reads no responses.
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
