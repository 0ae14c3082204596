// Tests which connections may be used when several attempts to connect end at the same time. failover.test.ts
// uses real servers.
import pg from 'pg'
import t from 'tap'
import type { Connection } from '../../src/database/connection.ts'
import { Systems, type Identity } from '../../src/database/systems.ts'

type Admitted = [Connection, Identity]

/** Admits a connection to a server, and returns the connection with the server's identity. */
function admit (systems: Systems, system: string, { timeline = '1', isCitus = false } = {}): Admitted {
  const connection = {
    server: { name: system },
    isOpen: true,
    isUnresponsive: false,
    closed: new Promise<void>(() => {}),
    close () { connection.isOpen = false },
    destroy () { connection.isOpen = false }
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

t.test('the system changes if only another system responds for 3 s, and connections end', async (t) => {
  const now = performance.now.bind(performance)
  let passedMs = 0
  t.intercept(performance, 'now', { value: () => now() + passedMs })
  const systems = new Systems()
  const [first, identity] = admit(systems, 'one')
  systems.choose([[first, identity]])
  const other = t.throws(() => admit(systems, 'other'))
  const refused = new Error('connect ECONNREFUSED')
  const readOnly = t.throws(() => systems.admit(first, { ...identity, takesWrites: false }))
  /** Whether the system changes, 3 s after the first of two such failures. */
  const changes = (...causes: unknown[]) => {
    systems.abandon(causes)
    passedMs += 3000
    return systems.abandon(causes)
  }
  t.notOk(changes(refused, other), 'a connection is open')
  Object.assign(first, { isUnresponsive: true })
  t.notOk(changes(refused, refused))
  t.notOk(changes(readOnly, other), 'a standby responds')
  t.notOk(changes(new pg.DatabaseError('starting up', 0, 'error'), other), 'a starting server responds')
  t.equal(first.isOpen, true)
  t.ok(changes(refused, other))
  t.equal(first.isOpen, false)
  const second = admit(systems, 'other')
  t.equal(systems.choose([second]), second[0])
})
