// Tests which connections may be used when several attempts to connect end at the same time. failover.test.ts
// uses real servers.
import pg from 'pg'
import t from 'tap'
import type { Connection } from '../../src/database/connection.ts'
import { isFull, UnfitServer } from '../../src/database/pg-errors.ts'
import { Systems } from '../../src/database/systems.ts'

/** Adds a connection to a server. */
function add (systems: Systems, system: string, { timeline = '1', isCitus = false } = {}): Connection {
  const connection = {
    server: { name: system },
    isOpen: true,
    isUnresponsive: false,
    closed: new Promise<void>(() => {}),
    close () { connection.isOpen = false },
    destroy () { connection.isOpen = false }
  } as unknown as Connection
  systems.add(connection, { system, timeline, isCitus })
  return connection
}

const isOther = { message: 'the server belongs to another database system than the servers in use' }

t.test('the first choice decides for attempts that began earlier', async (t) => {
  const systems = new Systems()
  const [one, two, other] = [add(systems, 'one'), add(systems, 'one'), add(systems, 'other')]
  t.equal(systems.choose([one, other], []), one)
  t.equal(systems.choose([other, two], []), two)
  t.throws(() => systems.choose([other], []), isOther)
})

t.test('another system does not hide that the server in use is full', async (t) => {
  const systems = new Systems()
  const [one, other] = [add(systems, 'one'), add(systems, 'other')]
  systems.choose([one], [])
  const full = Object.assign(new pg.DatabaseError('', 0, 'error'), { code: '53300' })
  for (const [error, expected] of [[full, true], [new Error('connect ECONNREFUSED'), false]] as const) {
    try {
      systems.choose([other], [error])
      t.fail('the other system was chosen')
    } catch (error) {
      t.equal(isFull(error), expected)
    }
  }
})

t.test('a connection to an older timeline is not chosen, even if it opened first', async (t) => {
  const systems = new Systems()
  const [old, promoted] = [add(systems, 'one'), add(systems, 'one', { timeline: '2' })]
  t.equal(systems.choose([old, promoted], []), promoted)
  t.throws(() => systems.choose([old], []), { message: 'another server has taken over' })
})

t.test('the nodes of Citus are one database', async (t) => {
  const systems = new Systems()
  for (const node of ['coordinator', 'worker']) {
    const connection = add(systems, node, { isCitus: true })
    t.equal(systems.choose([connection], []), connection)
  }
})

t.test('the system changes if only another system responds for 3 s, and connections end', async (t) => {
  const now = performance.now.bind(performance)
  let passedMs = 0
  t.intercept(performance, 'now', { value: () => now() + passedMs })
  const systems = new Systems()
  const [first, other] = [add(systems, 'one'), add(systems, 'other')]
  systems.choose([first], [])
  const refused = new Error('connect ECONNREFUSED')
  /** Chooses now and after 3 s. */
  const chooseTwice = (...errors: unknown[]) => {
    t.throws(() => systems.choose([other], errors), isOther)
    passedMs += 3000
    return systems.choose([other], errors)
  }
  t.throws(() => chooseTwice(refused), isOther, 'a connection is open')
  Object.assign(first, { isUnresponsive: true })
  for (const error of [new UnfitServer('a standby'), new pg.DatabaseError('starting up', 0, 'error')]) {
    t.throws(() => chooseTwice(error), isOther, error.message)
  }
  t.equal(first.isOpen, true)
  t.equal(chooseTwice(refused), other)
  t.equal(first.isOpen, false)
})
