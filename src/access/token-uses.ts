// Records in the background when tokens were last used.
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { LRUCache } from 'lru-cache'
import type { Database } from '../database/database.ts'
import { tokenUseEvents } from '../telemetry-events.ts'

const intervalMs = 60_000
const maxPauseMs = 3_600_000
const chunk = 1000
const stopMs = 1000

// Takes the locks in order and waits for none: several instances may record uses of the same tokens. Citus
// accepts neither a `with` here, nor `timestamptz - interval`, which depends on the time zone.
const recordUses = {
  name: 'tokens-use',
  text: `update tokens set last_used_at = to_timestamp(at)
    from unnest($1::bytea[], $2::float8[]) as used (used_hash, at)
    where hash = used_hash and hash = any (array(
      select hash from tokens join unnest($1, $2) as due (due_hash, due_at) on hash = due_hash
        where last_used_at < to_timestamp(due_at - 60) or last_used_at = created_at
        order by hash for update of tokens skip locked))`
}

/**
 * Writes the uses of each minute together. After a failure, pauses longer and longer: the role may lack the
 * privilege, and PostgreSQL logs each attempt. Returns a function that writes the latest uses and stops.
 */
export function startRecordingUses (
  database: { writeAside: (...args: Parameters<Database['writeAside']>) => Promise<unknown> },
  log: FastifyBaseLogger
) {
  /** Maps the hash of a token to the time of its last use, in s. If there are too many, drops the oldest. */
  const uses = new LRUCache<string, number>({ max: 50_000 })
  const record = ({ hash }: { hash: string }) => { uses.set(hash, Date.now() / 1000) }
  let pauseMs = intervalMs
  let timer: NodeJS.Timeout | undefined
  let writing: Promise<void> | undefined
  let isStopped = false

  async function write (): Promise<void> {
    try {
      const entries = [...uses.entries()]
      while (entries.length > 0) {
        const part = entries.splice(0, chunk)
        await database.writeAside(recordUses,
          [part.map(([hash]) => `\\x${hash}`), part.map(([, seconds]) => seconds)])
        for (const [hash, seconds] of part) if (uses.peek(hash) === seconds) uses.delete(hash)
      }
      pauseMs = intervalMs
    } catch (error) {
      if (pauseMs === intervalMs) log.warn({ err: error }, 'the last use of tokens cannot be recorded')
      pauseMs = Math.min(2 * pauseMs, maxPauseMs)
    }
  }

  function schedule (): void {
    if (!isStopped) timer = setTimeout(() => { writing = write().then(schedule) }, pauseMs).unref()
  }

  tokenUseEvents.subscribe(record)
  schedule()
  return async () => {
    isStopped = true
    clearTimeout(timer)
    tokenUseEvents.unsubscribe(record)
    // A shutdown does not wait for a database that is away, and only briefly for one that does not respond.
    if (uses.size === 0 || pauseMs > intervalMs) return
    await Promise.race([Promise.resolve(writing).then(write), delay(stopMs)])
  }
}
