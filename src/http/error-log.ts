// What the log says of answers that are no success: who asked for what, a few of each kind in full, of the
// rest how many.
import type { FastifyBaseLogger, FastifyError, FastifyInstance } from 'fastify'
import type { ApiError } from '../errors.ts'

declare module 'fastify' {
  interface FastifyInstance { errorLog: ErrorLog }
}

/** Who asked for what: never the path itself, since a caller may have put a token into it. */
export interface RequestSummary {
  method?: string | undefined
  route?: string | undefined
  user?: string | undefined
  tokenId?: string | undefined
  remoteAddress?: string | undefined
}

type Level = 'info' | 'warn' | 'error'

interface Kind {
  level: Level
  fault: ApiError
  inFull: number
  further: number
  addresses: Set<string>
  quietSeconds: number
}

/** Refusals of a kind that are logged in full at first; then one a second. */
const mostRefusals = 30
/** A fault is ours, comes with a stack, and is logged in full once, and again after so long without one. */
const quietAfterSeconds = 10
/** Of one kind that are told apart, and of kinds. */
const [mostAddresses, mostKinds] = [10_000, 100]

/** Puts the logbook of an app on it. */
export function registerErrorLog (app: FastifyInstance): void {
  const errorLog = new ErrorLog(app.log)
  app.decorate('errorLog', errorLog)
  app.addHook('onClose', (_app, done) => {
    errorLog.close()
    done()
  })
}

export class ErrorLog {
  readonly #summaries: FastifyBaseLogger
  readonly #kinds = new Map<string, Kind>()
  #timer: NodeJS.Timeout | undefined

  constructor (summaries: FastifyBaseLogger) {
    this.#summaries = summaries
  }

  /** `log` is that of the request, which knows its id. */
  note (fault: ApiError, log: FastifyBaseLogger, asked: RequestSummary): void {
    if (log.level === 'silent') return
    const isOurs = fault.status >= 500 && fault.status !== 501
    const level = fault.name === 'OVERLOADED' ? 'warn' : isOurs ? 'error' : 'info'
    const kind = this.#kindOf(nameOf(fault, asked), fault, level)
    if (kind.inFull < (level === 'error' ? 1 : mostRefusals)) {
      kind.inFull++
      const why = level === 'error' ? { err: fault.cause ?? fault } : { reason: reasonOf(fault) }
      log[level]({ error: fault.number, status: fault.status, ...why, ...asked }, fault.message)
      return
    }
    kind.further++
    if (kind.addresses.size < mostAddresses) kind.addresses.add(asked.remoteAddress ?? '')
  }

  close (): void {
    clearInterval(this.#timer)
    for (const kind of this.#kinds.values()) this.#sum(kind)
    this.#kinds.clear()
  }

  #kindOf (name: string, fault: ApiError, level: Level): Kind {
    const found = this.#kinds.get(name) ?? this.#kinds.get(String(fault.number))
    if (found !== undefined) return found
    const kind = { level, fault, inFull: 0, further: 0, addresses: new Set<string>(), quietSeconds: 0 }
    // A message may quote something that is different each time.
    this.#kinds.set(this.#kinds.size < mostKinds ? name : String(fault.number), kind)
    this.#timer ??= setInterval(() => this.#eachSecond(), 1000).unref()
    return kind
  }

  #eachSecond (): void {
    for (const [name, kind] of this.#kinds) {
      kind.quietSeconds = kind.further > 0 ? 0 : kind.quietSeconds + 1
      this.#sum(kind)
      if (kind.level !== 'error' || kind.quietSeconds >= quietAfterSeconds) kind.inFull--
      if (kind.inFull === 0) this.#kinds.delete(name)
    }
    if (this.#kinds.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }

  #sum (kind: Kind): void {
    const { level, fault: { number, status, message }, further, addresses } = kind
    if (further > 0) {
      const why = level === 'error' ? {} : { reason: reasonOf(kind.fault) }
      const summary = { error: number, status, ...why, further, addresses: addresses.size }
      this.#summaries[level](summary, `and more: ${message}`)
    }
    kind.further = 0
    addresses.clear()
  }
}

/**
 * What makes two of one kind: the number, a refusal's reason, a fault's message
 * and, of a fault in the service itself, the route.
 */
function nameOf (fault: ApiError, { method, route }: RequestSummary): string {
  const { number, status, name, cause } = fault
  if (status < 500 || name === 'OVERLOADED') return `${number} ${reasonOf(fault)}`
  const place = status === 500 ? `${method} ${route}` : ''
  return `${number} ${place} ${(cause as Error | undefined)?.message ?? cause}`
}

/** Of another's error the code: its message may quote what the caller sent. */
const reasonOf = ({ name, cause }: ApiError) =>
  typeof cause === 'string' ? cause : (cause as FastifyError | undefined)?.code ?? name
