// Handles signals while the service runs.
import { setTimeout } from 'node:timers/promises'
import closeWithGrace from 'close-with-grace'
import type { FastifyInstance } from 'fastify'
import type { Config } from '../config.ts'
import type { Lifecycle } from '../http/wire/shutdown.ts'
import { flushLog } from './log-stream.ts'

// A terminal sends Ctrl-C to npm and to the service, and npm forwards it.
const sameSignalMs = 1000

// Shares of SHUTDOWN_TIMEOUT: when unfinished lists and bodies are cut, and when the database and
// telemetry are no longer waited for.
const [forceCloseShare, releaseShare] = [0.85, 0.95]

/** SIGTERM, SIGINT and uncaught errors end the service. SIGUSR2 switches debug logging. */
export function handleSignals (
  app: Pick<FastifyInstance, 'log' | 'close'>, config: Config, lifecycle: Lifecycle,
  release: () => Promise<void>
): void {
  const { log } = app
  const { SHUTDOWN_TIMEOUT: shutdownTimeoutMs, DRAIN_DELAY: drainDelayMs } = config
  let first: { name: NodeJS.Signals, at: number } | undefined
  const grace = closeWithGrace({
    delay: shutdownTimeoutMs,
    logger: log,
    // A start that fails closes everything itself and sets the exit code.
    skip: ['SIGTERM', 'SIGINT', 'SIGUSR2', 'beforeExit']
  }, async ({ err, signal = first?.name }) => {
    const deadline = setTimeout(shutdownTimeoutMs * releaseShare)
    lifecycle.stopping = true
    lifecycle.forceCloseAt = performance.now() + shutdownTimeoutMs * forceCloseShare
    if (err) log.fatal({ err }, 'uncaught error')
    else log.info({ signal }, 'stopping')
    // Load balancers send requests until they have seen /readyz fail.
    if (signal === 'SIGTERM') await setTimeout(drainDelayMs)
    await app.close()
    await Promise.race([release(), deadline])
    log.info('stopped')
    await Promise.race([flushLog(), deadline])
  })

  function end (name: NodeJS.Signals): void {
    if (first === undefined) {
      first = { name, at: performance.now() }
      grace.close()
    } else if (performance.now() - first.at > sameSignalMs) {
      log.error(`second ${name}, exiting`)
      process.exit(1)
    }
  }
  for (const name of ['SIGTERM', 'SIGINT']) process.on(name, end)
  process.on('SIGUSR2', () => {
    const level = log.level === 'debug' ? config.LOG_LEVEL : 'debug'
    // With this level the log has the next line.
    log.level = 'debug'
    log.info(`SIGUSR2: the log level is ${level} from here on`)
    log.level = level
  })
}
