// Drives a connection through random orders of results, losses, timeouts, stale plans and failed attempts.
import assert from 'node:assert/strict'
import fc, { type Scheduler } from 'fast-check'
import pg from 'pg'
import t from 'tap'
import type { Connection, Row } from '../../src/database/connection.ts'
import { ManagedConnection } from '../../src/database/managed-connection.ts'
import { connectionEvents } from '../../src/events.ts'
import { must, runSteps, stopClock } from '../support/orders.ts'

interface Statement {
  act: string
  /** The outcome of each time that the statement is sent. */
  outcomes: string[]
  /** How many turns of the scheduler each result takes. */
  turns: number
  /** The outcomes so far. */
  sent: string[]
  isHedged: boolean
  isSettled: boolean
}

const errorOf = (code: string) => Object.assign(new pg.DatabaseError(code, 0, 'error'), { code })
const codes: Record<string, string> = { error: '23505', stale: '26000', fatal: '57P01' }

/** Has the contract of `Connection`. The scheduler decides when the next result or the end arrives. */
function scriptConnection (s: Scheduler) {
  const results: Array<(isLost: boolean) => void> = []
  const end = Promise.withResolvers<void>()
  let isStale = false
  const connection = {
    state: 'open',
    isOpen: true,
    isClosedByOwner: false,
    closed: end.promise,
    get pending () { return results.length },
    check: () => results.length > 0,

    run (_: unknown, [{ sent, outcomes, turns }]: [Statement]): Promise<Row[]> {
      must(connection.state === 'open' && !isStale, 'no statement is sent on a connection that ends')
      const number = sent.push('in flight') - 1
      const outcome = outcomes[number] ?? 'rows'
      const arrive = (left: number): Promise<void> => s.schedule(Promise.resolve(), outcome)
        .then(() => left > 1 ? arrive(left - 1) : results.shift()?.(false))
      arrive(turns)
      return new Promise((resolve, reject) => results.push((isLost) => {
        sent[number] = isLost ? 'lost' : outcome
        isStale ||= outcome === 'stale'
        if (!connection.isOpen || outcome === 'fatal') stop()
        if (sent[number] === 'rows') resolve([[String(number)]])
        else reject(isLost ? new Error('lost') : errorOf(codes[outcome] as string))
      }))
    },

    close (): void {
      connection.isClosedByOwner = true
      stop()
    },

    lose (): void {
      Object.assign(connection, { isOpen: false, state: 'ending' })
      s.schedule(Promise.resolve(), 'end').then(() => {
        connection.state = 'closed'
        for (const result of results.splice(0)) result(true)
        end.resolve()
      })
    }
  }
  function stop (): void {
    connection.isOpen = false
    if (results.length === 0 && connection.state === 'open') connection.lose()
  }
  return connection
}

const outcome = fc.constantFrom('rows', 'rows', 'rows', 'error', 'fatal')
const step = fc.record({
  act: fc.constantFrom<string>(
    'run', 'run', 'run', 'hedge', 'hedge', 'open', 'check', 'check', 'lose', 'pause'),
  // On a new connection no plan is stale, so only the first outcome may be `stale`.
  outcomes: fc.tuple(fc.oneof(outcome, fc.constant('stale')), outcome, outcome),
  turns: fc.constantFrom(1, 1, 20)
})

t.test('in every order, each statement settles once and is repeated only for a reason', async (t) => {
  const advance = stopClock(t)
  const events = { opened: 0, timed_out: 0, lost: 0 }
  const listen = ({ event }: { event: keyof typeof events }) => { events[event]++ }
  connectionEvents.subscribe(listen)
  t.teardown(() => connectionEvents.unsubscribe(listen))

  await fc.assert(fc.asyncProperty(
    fc.scheduler(), fc.array(step, { minLength: 5, maxLength: 25 }), fc.infiniteStream(fc.boolean()),
    async (s, steps, attempts) => {
      const connections: Array<ReturnType<typeof scriptConnection>> = []
      const statements: Statement[] = []
      let [isConnecting, mustConnect, isClosing, isClosed] = [false, false, false, false]
      let [started, retryAt, timedOut] = [0, 0, 0]
      Object.assign(events, { opened: 0, timed_out: 0, lost: 0 })
      const usable = () => connections.find(({ isOpen }) => isOpen)
      const open = () => connections.filter(({ state }) => state !== 'closed').length

      const managed = new ManagedConnection(async () => {
        must(!isClosing, 'no connection opens after close')
        must(!isConnecting && usable() === undefined, 'one usable connection is enough')
        must(open() < 3, 'at most three connections are open')
        must(performance.now() >= retryAt, 'after a failed attempt, the next attempt waits for 100 ms')
        isConnecting = true
        started++
        await s.schedule(Promise.resolve(), 'connect')
        isConnecting = false
        if (!attempts.next().value) {
          retryAt = performance.now() + 100
          throw new Error('refused')
        }
        connections.push(scriptConnection(s))
        return connections.at(-1) as unknown as Connection
      })

      async function start ({ act, ...plan }: typeof steps[0]): Promise<void> {
        const statement: Statement = { act, ...plan, sent: [], isHedged: false, isSettled: false }
        statements.push(statement)
        const isUsable = usable() !== undefined
        mustConnect = !isUsable && open() < 3 && performance.now() >= retryAt
        const sending = { run: managed.run, hedge: managed.runHedged, open: managed.opened }[act as 'run']
        const result = sending.call(managed, { name: '', text: '' }, [statement])
        must(!isUsable || act === 'open' || statement.sent.length === 1, 'a statement is sent at once')
        try {
          const rows = await result
          must(act === 'open' || statement.sent[Number(rows)] === 'rows', 'the rows are its own')
        } catch (error) {
          const { name, code = name, cause } = error as Error & { code?: string, cause?: { code?: string } }
          must(!/rows|in flight/.test(String(statement.sent)), 'a statement fails only without a success')
          must(cause?.code !== codes.stale, 'a statement with a stale plan is repeated')
          if (code === codes.error) must(statement.sent.includes('error'), 'the error is of the statement')
          else must(act === 'open' || code === 'DATABASE_UNAVAILABLE', code)
        }
        statement.isSettled = true
      }

      function check (): void {
        const isReplaced = open() < 3 && usable()?.check() === true
        managed.check()
        if (isReplaced) timedOut++
        for (const one of statements) one.isHedged ||= isReplaced && one.act === 'hedge' && !one.isSettled
      }

      async function close (): Promise<void> {
        isClosing = true
        const [last, attempt] = [connections.length - (usable() === undefined ? 0 : 1), started]
        await managed.close()
        const isOpening = isConnecting && started === attempt
        isClosed = !isOpening && (connections[last]?.state ?? 'closed') === 'closed'
      }

      const other: Record<string, () => unknown> =
        { check, close, pause: () => advance(60), lose: () => usable()?.lose() }
      await runSteps(s, [...steps, { ...steps[0] as typeof steps[0], act: 'close' }], (step) => {
        (other[step.act] ?? start)(step)
      }, () => {
        must(!mustConnect || isConnecting, 'a statement that needs a connection starts an attempt')
        mustConnect = false
        for (const { sent, isHedged } of statements) {
          must(sent.length <= 1 + Number(isHedged) + Number(sent.includes('stale')), 'nothing runs twice')
        }
        const waiting = statements
          .filter(({ isSettled, sent }) => !isSettled && !sent.includes('in flight')).length
        must(waiting === 0 || isConnecting, 'no statement waits without a reason')
        const pending = managed.pending()
        if (isClosing) return
        must(isConnecting ? pending >= waiting : pending === (usable()?.pending ?? 0), 'pending() counts')
      })
      assert(isClosed && open() === 0 && statements.every(({ isSettled }) => isSettled), 'everything ends')
      const lost = connections.filter(({ isClosedByOwner }) => !isClosedByOwner).length
      assert.deepEqual(events, { opened: connections.length, timed_out: timedOut, lost })
    }
  ), { numRuns: 250 })
})
