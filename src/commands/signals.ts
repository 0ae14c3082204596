// What signals do to the service while it runs.
import { setTimeout } from 'node:timers/promises'
import closeWithGrace from 'close-with-grace'
import type { FastifyBaseLogger } from 'fastify'
import type { Config } from '../config.ts'
import type { Lifecycle } from '../telemetry/health.ts'

export interface Running {
  config: Config
  lifecycle: Lifecycle
  log: FastifyBaseLogger
  /** Waits for what is under way. */
  close (): Promise<void>
}

// A terminal sends its Ctrl-C to npm and to the service, and npm hands its own
// on: what comes again this soon is the same one.
const sameSignalMs = 1000

// Of the time there is for all. What is cut off is to be over before the rest is given up.
const cutsAfter = 0.85

/** SIGTERM and SIGINT end the service, as does an error nobody caught; SIGUSR2 switches debug logging. */
export function handleSignals ({ config, lifecycle, log, close }: Running): void {
  let first: { name: NodeJS.Signals, at: number } | undefined
  const grace = closeWithGrace({
    delay: config.SHUTDOWN_TIMEOUT,
    logger: log,
    // A start that fails has closed everything itself, and its exit code tells.
    skip: ['SIGTERM', 'SIGINT', 'SIGUSR2', 'beforeExit']
  }, async ({ err, signal = first?.name }) => {
    lifecycle.stopping = true
    lifecycle.forceCloseAt = performance.now() + cutsAfter * config.SHUTDOWN_TIMEOUT
    if (err) log.fatal({ err }, 'uncaught error')
    else log.info({ signal }, 'stopping')
    // Balancers go on sending requests until they have seen /readyz fail.
    // Nobody balances what is stopped from a terminal, or broken.
    if (signal === 'SIGTERM') await setTimeout(config.DRAIN_DELAY)
    await close()
    log.info('stopped')
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
  process.on('SIGTERM', end)
  process.on('SIGINT', end)
  process.on('SIGUSR2', () => toggleDebug(log, config.LOG_LEVEL))
}

function toggleDebug (log: FastifyBaseLogger, configured: string): void {
  const level = log.level === 'debug' ? configured : 'debug'
  // While the more talkative of the two is on, so that it is read.
  if (level === 'debug') log.level = level
  log.info(`SIGUSR2: the log level is ${level} from here on`)
  log.level = level
}
