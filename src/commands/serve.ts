// The command `serve`: opens database, telemetry and server, serves until a signal, and closes all three.
import { lookup } from 'node:dns/promises'
import { setTimeout } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import { buildApp } from '../app.ts'
import type { Config } from '../config.ts'
import { parseServers } from '../database/connector.ts'
import { openDatabase, type Database } from '../database/database.ts'
import { migrate, serverStatement, supportedVersion, UnsupportedServer } from '../database/migrate.ts'
import { durabilityEvents } from '../events.ts'
import { openTelemetry } from '../telemetry/telemetry.ts'
import { loadEmbedded } from './database.ts'
import { formatError } from './format.ts'
import { openLogStream } from './log-stream.ts'
import { handleSignals } from './signals.ts'
import { printQuickStart } from './tokens-and-users.ts'

/** Resolves when the service is ready. If the service cannot start, closes what it has opened and rejects. */
export async function serve (config: Config): Promise<void> {
  const opened = new AsyncDisposableStack()
  try {
    // Resolve the name here. For localhost, Fastify would open a second server that buildApp does not set up.
    const { address: host } = await lookup(config.HOST, { order: 'ipv4first' })
    const embedded = config.DATABASE_URL === undefined
      ? await (await loadEmbedded()).startEmbedded(config.DATA_DIR)
      : undefined
    opened.defer(() => embedded?.close())
    const url = embedded?.url ?? config.DATABASE_URL as string
    const database = openDatabase({ url, statementTimeoutMs: config.STATEMENT_TIMEOUT })
    opened.defer(() => database.close())
    const observers = await openTelemetry(config)
    opened.defer(async () => { await Promise.all(observers.map((observer) => observer.close())) })
    const lifecycle = { starting: true, stopping: false }
    const app = await buildApp({ config, database, lifecycle, observers, logStream: await openLogStream() })
    opened.defer(() => app.close())

    for (const { url } of observers) if (url !== undefined) app.log.info({ url }, 'metrics')
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
    app.log.info({ servers: parseServers(url).urls.map((each) => new URL(each).host) }, 'database')
    handleSignals(app, config, lifecycle, () => opened.disposeAsync())

    const { postgresql, off } = await untilReady(database, url, config, app.log)
    if (lifecycle.stopping) return
    durabilityEvents.publish({ off })
    if (off.length > 0) app.log.warn({ off }, 'a crash of the database may lose acknowledged writes')
    // Clients of a shared port cannot choose a process, so each process listens only when it is ready.
    const address = early ?? await app.listen(listenOptions)
    if (embedded !== undefined) await printQuickStart(database, address)
    lifecycle.starting = false
    app.log.info({ version: manifest.version, node: process.versions.node, postgresql }, 'ready')
  } catch (error) {
    await opened.disposeAsync()
    throw error
  }
}

/** Migrates and probes. Repeats this until it succeeds, because the database may start after the service. */
async function untilReady (
  database: Database, url: string, config: Config, log: FastifyBaseLogger, pauseMs = 100
): Promise<{ postgresql: string, off: string[] }> {
  try {
    const [[version, encoding, off] = []] = await database.read(serverStatement)
    const postgresql = supportedVersion(version, encoding)
    if (config.MIGRATE === 'on') {
      const migrations = await migrate(url)
      if (migrations.length > 0) log.info({ migrations }, 'migrated')
    }
    await database.probe()
    return { postgresql, off: off?.split(' ') ?? [] }
  } catch (error) {
    if (error instanceof UnsupportedServer) throw error
    log.warn({ reason: formatError(error) }, `the database is not ready, next attempt in ${pauseMs} ms`)
    await setTimeout(pauseMs)
    return untilReady(database, url, config, log, Math.min(pauseMs * 2, 2000))
  }
}
