// The command `serve`: opens database and server, serves until a signal, and closes both.
import { lookup } from 'node:dns/promises'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { setImmediate, setTimeout } from 'node:timers/promises'
import closeWithGrace from 'close-with-grace'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import { startRecordingUses } from '../access/token-uses.ts'
import { buildApp } from '../app.ts'
import type { Config } from '../config.ts'
import { parseConnectionString } from '../database/connection-string.ts'
import { openDatabase, type Database } from '../database/database.ts'
import { migrate, serverStatement, supportedVersion, UnsupportedServer } from '../database/migrate.ts'
import { ownedTables, tableNames } from '../domains.ts'
import { givenSettings, isOldNode, maxDescriptors } from '../config-checks.ts'
import { durabilityEvents } from '../telemetry-events.ts'
import type { Lifecycle } from '../http/wire/server.ts'
import type { Table } from '../table-gateway/table.ts'
import { loadEmbedded } from './database.ts'
import { formatError } from './format.ts'
import { interrupt } from './interrupt.ts'
import { openLogStream } from './log-stream.ts'
import { printQuickStart } from './tokens.ts'

/** Resolves when the service is ready. If the service cannot start, closes what it has opened and rejects. */
export async function serve (config: Config): Promise<void> {
  const opened = new AsyncDisposableStack()
  try {
    // Resolve the name here. For localhost, Fastify would open a second server that buildApp does not set up.
    const { address } = await lookup(config.HOST, { order: 'ipv4first' })
    // With an empty host, Node listens on `::`, or on 0.0.0.0 if the system has no IPv6.
    const host = address === '::' ? '' : address
    const embedded = config.DATABASE_URL === undefined ? await startDatabase(host, config) : undefined
    opened.defer(() => embedded?.close())
    const url = embedded?.url ?? config.DATABASE_URL as string
    const database = openDatabase({ url, statementTimeoutMs: config.STATEMENT_TIMEOUT })
    opened.defer(() => database.close())
    const lifecycle = { starting: true, stopping: false }
    const app = await buildApp({ config, database, lifecycle, logStream: await openLogStream() })
    opened.defer(() => app.close())
    opened.defer(startRecordingUses(database, app.log))
    const { node } = process.versions
    if (isOldNode(node)) app.log.warn({ node }, 'Node has known vulnerabilities: see SECURITY.md')
    // Some more are needed for the database, metrics and files.
    const descriptors = maxDescriptors()
    if (descriptors < config.MAX_CONNECTIONS + 100) {
      app.log.warn({ descriptors }, 'too few file descriptors (ulimit -n) for MAX_CONNECTIONS')
    }

    const listenOptions = {
      host,
      port: config.PORT,
      // Fastify's type lacks this option of Node.
      reusePort: config.REUSE_PORT === 'on',
      // If the backlog is full, the system drops new connections. Their clients retry only after a second.
      backlog: config.MAX_CONNECTIONS,
      listenTextResolver: (url: string) => `listening on ${url}`
    }
    const early = listenOptions.reusePort ? undefined : await app.listen(listenOptions)
    app.log.info({ servers: parseConnectionString(url).servers.map(({ name }) => name) }, 'database')
    handleSignals(app, config, lifecycle, () => opened.disposeAsync())

    const { postgresql, off, missing } = await untilReady(database, url, config, app.log)
    if (lifecycle.stopping) return
    durabilityEvents.publish({ off })
    if (off.length > 0) app.log.warn({ off }, 'a crash of the database may lose acknowledged writes')
    if (missing.length > 0) app.log.warn({ missing }, 'the role lacks settings: see Pool in docs/scaling.md')
    // Clients of a shared port cannot choose a process, so each process listens only when it is ready.
    const listeningOn = early ?? await app.listen(listenOptions)
    if (embedded !== undefined) {
      await printQuickStart(database, ownedTables[0] as Table, listeningOn, config.DATA_DIR)
    }
    // Collect the garbage of the start now. Otherwise, V8 would do so during the first requests.
    globalThis.gc?.()
    lifecycle.starting = false
    app.log.info({ version: manifest.version, node, postgresql, settings: givenSettings() }, 'ready')
  } catch (error) {
    await opened.disposeAsync()
    throw error
  }
}

/** First rejects if the port is taken: the first start of PostgreSQL takes seconds. */
async function startDatabase (host: string, { PORT: port, REUSE_PORT, DATA_DIR }: Config) {
  if (REUSE_PORT === 'off') {
    const probe = createServer().listen({ host, port })
    await once(probe, 'listening')
    probe.close()
    await once(probe, 'close')
  }
  return (await loadEmbedded()).startEmbedded(DATA_DIR)
}

/** Migrates and probes. Repeats this until it succeeds, because the database may start after the service. */
async function untilReady (
  database: Database, url: string, config: Config, log: FastifyBaseLogger, pauseMs = 100
): Promise<{ postgresql: string, off: string[], missing: string[] }> {
  try {
    const [[version, encoding, off, missing] = []] = await database.read(serverStatement)
    const postgresql = supportedVersion(version, encoding)
    if (config.MIGRATE === 'on') {
      const migrations = await migrate(url,
        () => log.warn('the migration waits for a lock of another session, such as pg_dump'))
      if (migrations.length > 0) log.info({ migrations }, 'migrated')
    }
    await database.probe(tableNames)
    await database.open()
    return { postgresql, off: off?.split(' ') ?? [], missing: missing?.split(' ') ?? [] }
  } catch (error) {
    if (error instanceof UnsupportedServer) throw error
    log.warn({ reason: formatError(error) }, `the database is not ready, next attempt in ${pauseMs} ms`)
    await setTimeout(pauseMs)
    return untilReady(database, url, config, log, Math.min(pauseMs * 2, 2000))
  }
}

const endSignals = ['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT'] as const

/** `endSignals` and uncaught errors end the service. SIGUSR2 turns debug logging on or off. */
function handleSignals (
  app: FastifyInstance, config: Config, lifecycle: Lifecycle, release: () => Promise<void>
): void {
  const { log } = app
  let first: { name: NodeJS.Signals, at: number } | undefined
  const grace = closeWithGrace({
    delay: config.SHUTDOWN_TIMEOUT,
    logger: log,
    // The code below handles signals. On 'beforeExit', after a failed start, serve has closed everything.
    skip: [...endSignals, 'SIGUSR2', 'beforeExit']
  }, async ({ err, signal = first?.name }) => {
    // Leave time to exit with code 0, even if the database or the reader of the log does not respond.
    const deadline = setTimeout(config.SHUTDOWN_TIMEOUT * 0.95)
    lifecycle.stopping = true
    lifecycle.forceCloseAt = performance.now() + config.SHUTDOWN_TIMEOUT * 0.85
    if (err) log.fatal({ err }, 'uncaught error')
    else log.info({ signal }, 'stopping')
    // Other processes of the port take new connections. Open connections stay.
    if (config.REUSE_PORT === 'on') app.server.close()
    // Serve during this delay: load balancers still send requests until they notice that /readyz fails.
    if (signal === 'SIGTERM') await setTimeout(config.DRAIN_DELAY)
    await app.close()
    await Promise.race([release(), deadline])
    log.info('stopped')
    // The log stream writes these lines first. The callback runs when standard output has accepted them.
    await setImmediate()
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
  for (const name of endSignals) process.off(name, interrupt).on(name, end)
  process.on('SIGUSR2', () => {
    const level = log.level === 'debug' ? config.LOG_LEVEL : 'debug'
    // Set `debug` first. Otherwise the level `warn` or `error` would hide the next line.
    log.level = 'debug'
    log.info(`SIGUSR2: the log level is ${level} from here on`)
    log.level = level
  })
}
