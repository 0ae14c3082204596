// Tests which connections may be used when several attempts to connect end at the same time. failover.test.ts
// uses real servers.
import t from 'tap'
import type { Connection } from '../../src/database/connection.ts'
import { Systems, type Identity } from '../../src/database/systems.ts'

type Admitted = [Connection, Identity]

/** Admits a connection to a server, and returns the connection with the server's identity. */
function admit (systems: Systems, system: string, { timeline = '1', isCitus = false } = {}): Admitted {
  const connection = {
    server: { name: system },
    isOpen: true,
    closed: new Promise<void>(() => {}),
    close () { connection.isOpen = false }
  } as unknown as Connection
  const identity = { system, timeline, isCitus, takesWrites: true }
  return [connection, systems.admit(connection, identity)]
}

t.test('the first choice decides for attempts that began earlier', async (t) => {
  const systems = new Systems()
  const [one, two, other] = [admit(systems, 'one'), admit(systems, 'one'), admit(systems, 'other')]
  t.equal(systems.choose([one, other]), one[0])
  t.equal(systems.choose([other, two]), two[0])
  t.throws(() => systems.choose([other]), { message: 'another server has taken over' })
  t.throws(() => admit(systems, 'other'), { message: /^the server belongs to another database system/ })
})

t.test('a connection to an older timeline is not chosen, even if it opened first', async (t) => {
  const systems = new Systems()
  const [old, promoted] = [admit(systems, 'one'), admit(systems, 'one', { timeline: '2' })]
  t.equal(systems.choose([old, promoted]), promoted[0])
  t.throws(() => systems.choose([old]), { message: 'another server has taken over' })
})

t.test('the nodes of Citus are one database', async (t) => {
  const systems = new Systems()
  for (const node of ['coordinator', 'worker']) {
    const admitted = admit(systems, node, { isCitus: true })
    t.equal(systems.choose([admitted]), admitted[0])
  }
})
