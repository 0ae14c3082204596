// Handles signals while the service runs.
import { Server } from 'node:net'
import { setTimeout } from 'node:timers/promises'
import closeWithGrace from 'close-with-grace'
import type { FastifyInstance } from 'fastify'
import type { Config } from '../config.ts'
import type { Lifecycle } from '../http/wire/closing.ts'

/** SIGTERM, SIGINT and uncaught errors end the service. SIGUSR2 turns debug logging on or off. */
export function handleSignals (
  app: FastifyInstance, config: Config, lifecycle: Lifecycle, release: () => Promise<void>
): void {
  const { log } = app
  let first: { name: NodeJS.Signals, at: number } | undefined
  const grace = closeWithGrace({
    delay: config.SHUTDOWN_TIMEOUT,
    logger: log,
    // The code below handles signals. On 'beforeExit', after a failed start, serve has closed everything.
    skip: ['SIGTERM', 'SIGINT', 'SIGUSR2', 'beforeExit']
  }, async ({ err, signal = first?.name }) => {
    // Leave time to exit with code 0, even if the database or the reader of the log does not respond.
    const deadline = setTimeout(config.SHUTDOWN_TIMEOUT * 0.95)
    lifecycle.stopping = true
    lifecycle.forceCloseAt = performance.now() + config.SHUTDOWN_TIMEOUT * 0.85
    if (err) log.fatal({ err }, 'uncaught error')
    else log.info({ signal }, 'stopping')
    // Other processes of the port take new connections. Unlike http's `close`, net's keeps idle connections.
    if (config.REUSE_PORT === 'on') Server.prototype.close.call(app.server)
    // Serve during this delay: load balancers still send requests until they notice that /readyz fails.
    if (signal === 'SIGTERM') await setTimeout(config.DRAIN_DELAY)
    await app.close()
    await Promise.race([release(), deadline])
    log.info('stopped')
    // The callback runs when standard output has accepted all log lines.
    await Promise.race([new Promise((resolve) => { process.stdout.write('', resolve) }), deadline])
  })

  // After Ctrl-C, both the terminal and npm may signal the service. Two signals within 1 s count as one.
  function end (name: NodeJS.Signals): void {
    if (first === undefined) {
      first = { name, at: performance.now() }
      grace.close()
    } else if (performance.now() - first.at > 1000) {
      log.error(`second ${name}, exiting`)
      process.exit(1)
    }
  }
  for (const name of ['SIGTERM', 'SIGINT']) process.on(name, end)
  process.on('SIGUSR2', () => {
    const level = log.level === 'debug' ? config.LOG_LEVEL : 'debug'
    // Set `debug` first. Otherwise the level `warn` or `error` would hide the next line.
    log.level = 'debug'
    log.info(`SIGUSR2: the log level is ${level} from here on`)
    log.level = level
  })
}
