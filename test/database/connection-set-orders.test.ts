// Drives several connections through all combinations of their states, and through random orders of results,
// losses, timeouts and failed attempts to connect. These tests need no server.
import assert from 'node:assert/strict'
import fc from 'fast-check'
import pg from 'pg'
import t from 'tap'
import type { Connection, Row } from '../../src/database/connection.ts'
import { ConnectionSet } from '../../src/database/connection-set.ts'
import { ManagedConnection } from '../../src/database/managed-connection.ts'
import { connectionEvents } from '../../src/events.ts'
import { must, runSteps, settlePromises, stopClock } from '../support/orders.ts'

const advance = stopClock(t)
const errorOf = (code: string) => Object.assign(new pg.DatabaseError(code, 0, 'error'), { code })

/** Has the contract of `Connection`. The test decides when a result arrives. */
function scriptConnection (owner: string, onSend = (_name: string): void => {}) {
  const results: Array<PromiseWithResolvers<Row[]> & { onUnresponsive?: () => void }> = []
  const end = Promise.withResolvers<void>()
  const connection = {
    owner,
    /** The names of all statements that were sent. */
    sent: [] as string[],
    isOpen: true,
    isEnded: false,
    isClosedByOwner: false,
    isLate: false,
    isUnresponsive: false,
    closed: end.promise,
    get pending () { return results.length },

    onUnresponsive (): void {},

    /** The first check without a result makes the connection late, the second one unresponsive. */
    check (): void {
      const { isLate, isUnresponsive } = connection
      connection.isLate = results.length > 0
      connection.isUnresponsive = isLate && results.length > 0
      if (!connection.isUnresponsive || isUnresponsive) return
      if (connection.isOpen) connection.onUnresponsive()
      for (const result of results) {
        result.onUnresponsive?.()
        result.onUnresponsive = undefined
      }
    },

    run ({ name }: { name: string }, _: unknown[], onUnresponsive?: () => void): Promise<Row[]> {
      must(!connection.isEnded, 'no statement is sent on a connection that has ended')
      const result = { ...Promise.withResolvers<Row[]>(), onUnresponsive }
      results.push(result)
      connection.sent.push(name)
      onSend(name)
      return result.promise
    },

    /** Ends the oldest statement. */
    settle (error?: Error & { code?: string }): void {
      Object.assign(connection, { isLate: false, isUnresponsive: false })
      const result = results.shift()
      if (error === undefined) result?.resolve([[owner]])
      else result?.reject(error)
      if (error?.code === '57P01') connection.isOpen = false
      if (!connection.isOpen && results.length === 0) connection.end()
    },

    close (): void {
      connection.isClosedByOwner ||= !connection.isEnded
      connection.isOpen = false
      if (results.length === 0) connection.end()
    },

    end (): void {
      Object.assign(connection, { isOpen: false, isEnded: true })
      for (const { reject } of results.splice(0)) reject(new Error('lost'))
      end.resolve()
    }
  }
  return connection
}

type Scripted = ReturnType<typeof scriptConnection>

const states = ['new', 'paused', 'opening', 'idle', 'busy', 'late', 'unresponsive', 'lost'] as const
type State = (typeof states)[number]
type Managed = ManagedConnection
/** How servers treat attempts to connect. 53300: the only server, or one of two, has no free slot. */
const answers = ['accepted', 'ignored', 'refused', '53300', 'refused, 53300'] as const
type Answer = (typeof answers)[number]

const rejectionOf = (answer: Answer) => answer === 'refused, 53300'
  ? new AggregateError([new Error('refused'), errorOf('53300')], answer)
  : answer === '53300' ? errorOf(answer) : new Error(answer)

/** Creates a managed connection in the state. `answer` decides about later attempts to connect. */
function createIn (state: State, owner: string) {
  const opened: Scripted[] = []
  const first: Partial<Record<State, Answer>> = { paused: 'refused', opening: 'ignored' }
  const place = { opened, answer: first[state] ?? 'accepted', managed: new ManagedConnection(connect), enter }

  async function connect (): Promise<Connection> {
    const { answer } = place
    if (answer === 'ignored') await new Promise((resolve) => setTimeout(resolve, 3000))
    if (answer !== 'accepted') throw rejectionOf(answer)
    opened.push(scriptConnection(owner))
    return opened.at(-1) as unknown as Connection
  }

  async function enter (): Promise<void> {
    if (state === 'new') return
    const attempt = place.managed.open().catch(() => {})
    if (state !== 'opening') await attempt
    if (state === 'lost') opened[0]?.end()
    if (['busy', 'late', 'unresponsive'].includes(state)) opened[0]?.run({ name: state }, []).catch(() => {})
    // Without `check`, the unresponsive connection is not replaced yet.
    const isUnresponsive = state === 'unresponsive'
    Object.assign(opened[0] ?? {}, { isLate: isUnresponsive || state === 'late', isUnresponsive })
  }
  return place
}

/** Runs a statement of the first two connections. The third one is for other statements. */
async function runIn (first: State, second: State, other: State, answer: Answer) {
  const all = [first, second, other]
  const places = all.map((state, index) => createIn(state, String(index)))
  // An attempt is slow after 200 ms. After a refused attempt, the next 100 ms are a pause.
  await Promise.all(places.filter((_, index) => all[index] === 'opening').map(({ enter }) => enter()))
  advance(200)
  await Promise.all(places.filter((_, index) => all[index] !== 'opening').map(({ enter }) => enter()))
  for (const place of places) Object.assign(place, { answer })

  const [one, two, three] = places.map(({ managed }) => managed) as [Managed, Managed, Managed]
  const set = new ConnectionSet({ own: [one, two], other: [three] })
  const sentTo = () => places.flatMap(({ opened }) => opened).filter(({ sent }) => sent.includes('one'))
    .map(({ owner }) => owner)
  const outcome = set.run('own', { name: 'one', text: '' })
    .then(([row]) => row?.[0], ({ cause }) => cause)
  const atOnce = sentTo()
  await settlePromises()
  advance(200)
  await settlePromises()
  const soon = sentTo()
  advance(3000)
  await settlePromises()
  for (const each of places.flatMap(({ opened }) => opened)) while (each.pending > 0) each.settle()
  return { atOnce, soon, sentTo: sentTo(), outcome: await outcome }
}

t.test('no statement fails that an open connection could have run', async () => {
  for (const first of states) {
    for (const second of states) {
      for (const other of states) {
        for (const answer of answers) {
          const { atOnce, soon, sentTo, outcome } = await runIn(first, second, other, answer)
          const what = `${first}, ${second}, other ${other}, ${answer}: ${outcome}`
          const own: State[] = [first, second]
          const isPrompt = (state: State) => state === 'idle' || state === 'busy'
          const isUsable = (state: State) => isPrompt(state) || state === 'late'
          const mayConnect = /new|lost|unresponsive/
            .test(own.find((state) => !isUsable(state) && state !== 'paused') ?? '')
          if (own.some(isPrompt)) assert.equal(atOnce.length, 1, `sent at once: ${what}`)
          if ([...own, other].some(isPrompt)) assert.equal(soon.length, 1, `sent within 200 ms: ${what}`)
          if (!own.some(isPrompt) && mayConnect && answer === 'accepted') {
            assert.notEqual(sentTo[0], '2', `waits for the new connection: ${what}`)
          }
          if (own.some(isPrompt)) assert.notEqual(sentTo[0], '2', `sent on a connection of its own: ${what}`)
          // If the server rejects only new connections, it may answer on a slow one.
          const mustSucceed = [...own, other].some(isUsable) || (mayConnect && (answer === 'accepted' ||
            (answer.endsWith('53300') && [...own, other].includes('unresponsive'))))
          assert.deepEqual(sentTo, mustSucceed ? [outcome] : [], what)
        }
      }
    }
  }
})

t.test('a close waits for an attempt to connect that fails, and no later attempt follows', async (t) => {
  const { promise, reject } = Promise.withResolvers<Connection>()
  const managed = new ManagedConnection(() => promise)
  const opening = managed.open()
  const closed = managed.close()
  reject(new Error('refused'))
  await t.rejects(opening, { message: 'refused' })
  await closed
  await t.rejects(managed.open(), { message: 'refused' })
})

const outcome = fc.constantFrom('rows', 'rows', 'rows', 'error', 'fatal')
const step = fc.record({
  act: fc.constantFrom('run', 'run', 'run', 'hedge', 'hedge', 'check', 'check', 'lose', 'pause', 'pause'),
  isRead: fc.boolean(),
  /** The connection to lose. */
  index: fc.nat(2),
  /** The outcomes when the statement is sent first and again. */
  outcomes: fc.tuple(outcome, outcome),
  /** How many turns of the scheduler a result takes. */
  turns: fc.constantFrom(1, 1, 20)
})
type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never
const errors: Record<string, Error | undefined> = { error: errorOf('23505'), fatal: errorOf('57P01') }

t.test('in every order, each statement settles once, on a connection of its own if possible', async (t) => {
  const events = { opened: 0, failed: 0, timed_out: 0, lost: 0 }
  const listen = ({ event }: { event: keyof typeof events }) => { events[event]++ }
  connectionEvents.subscribe(listen)
  t.teardown(() => connectionEvents.unsubscribe(listen))

  await fc.assert(fc.asyncProperty(
    fc.scheduler(), fc.array(step, { minLength: 5, maxLength: 30 }),
    fc.infiniteStream(fc.constantFrom<Answer>('accepted', 'accepted', 'refused', '53300')),
    async (s, steps, nextAnswers) => {
      Object.assign(events, { opened: 0, failed: 0, timed_out: 0, lost: 0 })
      let [isClosing, isClosed, failed, timedOut] = [false, false, 0, 0]
      const statements: Array<Step & { sentTo: Scripted[], mayRepeat: boolean, isSettled: boolean }> = []
      /** The look-ups that the last check must repeat. */
      let repeated: typeof statements = []

      function createPlace (owner: string) {
        const opened: Scripted[] = []
        const place = { owner, opened, isConnecting: false, usable, managed: new ManagedConnection(connect) }
        let retryAt = 0
        function usable (): Scripted | undefined {
          return opened.find(({ isOpen, isUnresponsive }) => isOpen && !isUnresponsive)
        }
        async function connect (): Promise<Connection> {
          must(!isClosing, 'no connection opens after close')
          must(!place.isConnecting && usable() === undefined, 'one usable connection is enough')
          must(opened.filter(({ isEnded }) => !isEnded).length < 3, 'at most three connections are open')
          must(performance.now() >= retryAt, 'after a failed attempt, the next attempt waits for 100 ms')
          place.isConnecting = true
          await s.schedule(Promise.resolve(), 'connect')
          place.isConnecting = false
          const answer = nextAnswers.next().value
          if (answer !== 'accepted') {
            failed++
            retryAt = performance.now() + 100
            throw rejectionOf(answer)
          }
          const connection: Scripted = scriptConnection(owner, (name) => onSend(connection, name))
          opened.push(connection)
          return connection as unknown as Connection
        }
        return place
      }
      const places = ['write one', 'write two', 'read'].map(createPlace)
      const ownOf = (isRead: boolean) => places.filter(({ owner }) => (owner === 'read') === isRead)
      const managedOf = (isRead: boolean) => ownOf(isRead).map(({ managed }) => managed)
      const set = new ConnectionSet({ read: managedOf(true), write: managedOf(false) })
      const isNoneUsable = (some = places) => some.every(({ usable }) => usable() === undefined)
      const connections = () => places.flatMap(({ opened }) => opened)

      function onSend (connection: Scripted, name: string): void {
        const statement = statements[Number(name)] as typeof statements[0]
        const own = ownOf(statement.isRead)
        const isOwn = own.some(({ opened }) => opened.includes(connection))
        const isPrompt = own.some(({ usable }) => usable()?.isLate === false)
        must(isOwn || !isPrompt, 'connections of its own come first')
        const isUsable = connection.isOpen && !connection.isUnresponsive
        must(isUsable || isNoneUsable(), 'usable connections come first')
        const outcome = statement.outcomes[statement.sentTo.push(connection) - 1]
        const arrive = (left: number): Promise<void> => s.schedule(Promise.resolve(), outcome)
          .then(() => left > 1 ? arrive(left - 1) : connection.settle(errors[outcome as string]))
        arrive(statement.turns)
      }

      async function start (step: Step): Promise<void> {
        const statement = { ...step, sentTo: [] as Scripted[], mayRepeat: false, isSettled: false }
        const name = String(statements.push(statement) - 1)
        const own = ownOf(step.isRead)
        const isIdle = own.some(({ usable }) => usable()?.pending === 0)
        const send = step.act === 'hedge' ? set.runHedged : set.run
        const result = send.call(set, step.isRead ? 'read' : 'write', { name, text: '' })
        must(!isIdle || statement.sentTo.length === 1, 'a statement is sent at once on an idle connection')
        try {
          const [row] = await result
          must(statement.sentTo.some(({ owner }) => owner === row?.[0]), 'the rows are its own')
        } catch {
          must(statement.sentTo.length > 0 || isNoneUsable(), 'no statement fails that could have run')
        }
        statement.isSettled = true
      }

      function check (): void {
        const late = places.flatMap(({ usable }) => usable() ?? [])
          .filter(({ isLate, pending }) => isLate && pending > 0)
        timedOut += late.length
        repeated = statements.filter(({ act, isSettled, mayRepeat, sentTo: [first] }) =>
          act === 'hedge' && !isSettled && !mayRepeat && late.some((connection) => connection === first))
        for (const statement of repeated) statement.mayRepeat = true
        for (const { usable } of places) usable()?.check()
      }

      async function close (): Promise<void> {
        await set.close()
        isClosed = true
      }

      await runSteps(s, [...steps, undefined], (step) => {
        if (step === undefined) {
          isClosing = true
          close()
        } else if (step.act === 'check') check()
        else if (step.act === 'lose') places[step.index]?.usable()?.end()
        else if (step.act === 'pause') advance(100)
        else start(step)
      }, () => {
        for (const { sentTo, mayRepeat } of statements) {
          must(sentTo.length <= 1 + Number(mayRepeat), 'nothing runs twice')
        }
        for (const { sentTo, isRead, isSettled } of repeated.splice(0)) {
          const isRepeated = sentTo.length === 2 || ownOf(isRead).some((place) => place.isConnecting)
          must(isRepeated || isSettled || isNoneUsable(), 'a look-up is repeated')
        }
        const isWaiting = statements.some(({ sentTo, isSettled }) => sentTo.length === 0 && !isSettled)
        const isConnecting = places.some((place) => place.isConnecting)
        must(!isWaiting || isConnecting, 'no statement waits without a reason')
        const pending = statements.filter(({ isSettled }) => !isSettled).length
        // A repeated statement counts twice.
        must(set.pending.read + set.pending.write >= pending, 'pending counts')
        for (const { opened } of places) {
          must(opened.slice(0, -1).every(({ isOpen }) => !isOpen), 'a replaced connection is closed')
          must(isClosing || !opened.at(-1)?.isClosedByOwner, 'only a replaced connection is closed')
        }
      })
      assert(isClosed && connections().every(({ isEnded }) => isEnded), 'everything ends')
      assert(statements.every(({ isSettled }) => isSettled), 'each statement settles')
      assert.deepEqual(set.pending, { read: 0, write: 0 })
      const lost = connections().filter(({ isClosedByOwner }) => !isClosedByOwner).length
      assert.deepEqual(events, { opened: connections().length, failed, timed_out: timedOut, lost })
    }
  ), { numRuns: 250 })
})
