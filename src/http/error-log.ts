// Counts and logs each error that the service sends. Once a second, logs how many errors got no line.
import type { FastifyBaseLogger, FastifyError, FastifyInstance } from 'fastify'
import type { ApiError } from '../errors.ts'

declare module 'fastify' {
  interface FastifyInstance { errorLog: ErrorLog }
}

// Per second. An error's first line ignores `maxLines`, so that frequent errors do not hide rare ones.
const [maxLinesPerError, maxLines] = [20, 60]

export function registerErrorLog (app: FastifyInstance): void {
  const errorLog = new ErrorLog(app.log)
  app.decorate('errorLog', errorLog)
  app.addHook('onClose', async () => errorLog.flush())
}

class ErrorLog {
  readonly #log: FastifyBaseLogger
  /** The errors of the current second, by number and reason. */
  readonly #errors = new Map<string, { error: ApiError, logged: number, further: number }>()
  #lines = 0
  #timer: NodeJS.Timeout | undefined
  /** Receives each error. `kind`: the operation's id, `token` for a look-up, `docs`, or `connection`. */
  onError: (error: ApiError, kind: string) => void = () => {}

  constructor (log: FastifyBaseLogger) {
    this.#log = log
  }

  /** Call this once for each error response and rejected connection. `client`: further fields of the line. */
  record (error: ApiError, kind: string, log: FastifyBaseLogger, client: object): void {
    this.onError(error, kind)
    if (log.level === 'silent') return
    this.#timer ??= setTimeout(() => this.flush(), 1000).unref()
    const level = levelOf(error)
    // Count server errors by number only. Their causes are countless: a limit per cause would limit nothing.
    const key = `${error.number} ${level === 'error' ? '' : reasonOf(error)}`
    const entry = this.#errors.get(key) ?? { error, logged: 0, further: 0 }
    this.#errors.set(key, entry)
    if (entry.logged > 0 && (entry.logged === maxLinesPerError || this.#lines >= maxLines)) {
      entry.further++
      return
    }
    entry.logged++
    this.#lines++
    const why = level === 'error' ? { err: error.cause ?? error } : { reason: reasonOf(error) }
    log[level]({ error: error.number, status: error.status, ...why, ...client }, error.message)
  }

  flush (): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    for (const { error, further } of this.#errors.values()) {
      const { number, status, message } = error
      const summary = { error: number, status, reason: reasonOf(error), further }
      if (further > 0) this.#log[levelOf(error)](summary, `and more: ${message}`)
    }
    this.#lines = 0
    this.#errors.clear()
  }
}

const levelOf = ({ name, status }: ApiError) =>
  name === 'OVERLOADED' ? 'warn' : status >= 500 && status !== 501 ? 'error' : 'info'

/** Returns the code of a library's error, not the message: the message may contain text of a client. */
const reasonOf = ({ name, cause }: ApiError) =>
  typeof cause === 'string' ? cause : (cause as FastifyError | undefined)?.code ?? name
