// The command `serve`: opens database, telemetry and server, serves until a signal, and closes all three.
import { lookup } from 'node:dns/promises'
import { setTimeout } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import { buildApp } from '../app.ts'
import type { Config } from '../config.ts'
import { describeServers } from '../database/connection-string.ts'
import { openDatabase, type Database } from '../database/database.ts'
import { migrate, supportedVersion, UnsupportedServer, versionStatement } from '../database/migrate.ts'
import { openTelemetry } from '../telemetry/telemetry.ts'
import { loadEmbedded } from './database.ts'
import { formatError } from './format-error.ts'
import { printQuickStart } from './quick-start.ts'
import { openLogStream } from './log-stream.ts'
import { handleSignals } from './signals.ts'

/** Resolves when the service is ready. If the service cannot start, closes what it has opened and rejects. */
export async function serve (config: Config): Promise<void> {
  const opened = new AsyncDisposableStack()
  try {
    // Resolve the name here. For localhost, Fastify would open a second server that buildApp does not set up.
    const { address: host } = await lookup(config.HOST, { order: 'ipv4first' }).catch(() => {
      throw new Error(`HOST: expected an address or a host name, got ${JSON.stringify(config.HOST)}`)
    })
    const embedded = config.DATABASE_URL === undefined
      ? await (await loadEmbedded()).startEmbedded(config.DATA_DIR)
      : undefined
    opened.defer(() => embedded?.close())
    const url = embedded?.url ?? config.DATABASE_URL as string
    const servers = describeServers(url)
    const database = openDatabase({ url, statementTimeoutMs: config.STATEMENT_TIMEOUT })
    opened.defer(() => database.close())
    const observers = await openTelemetry(config)
    opened.defer(async () => { await Promise.all(observers.map((observer) => observer.close())) })
    const lifecycle = { starting: true, stopping: false }
    const app = await buildApp({ config, database, lifecycle, observers, logStream: await openLogStream() })
    opened.defer(() => app.close())

    for (const { url } of observers) if (url !== undefined) app.log.info({ url }, 'metrics')
    const address = await app.listen({
      host,
      port: config.PORT,
      // If the backlog is full, the system drops new connections. Their clients retry only after a second.
      backlog: config.MAX_CONNECTIONS,
      listenTextResolver: (url) => `listening on ${url}`
    }).catch((error) => {
      throw error.code === 'EADDRINUSE' ? new Error(`port ${config.PORT} on ${config.HOST} is in use`) : error
    })
    app.log.info({ servers }, 'database')
    handleSignals(app, config, lifecycle, () => opened.disposeAsync())

    const postgresql = await untilReady(() => migrateAndProbe(database, url, config, app.log), app.log)
    if (embedded !== undefined) await printQuickStart(database, address)
    lifecycle.starting = false
    app.log.info({ version: manifest.version, node: process.versions.node, postgresql }, 'ready')
  } catch (error) {
    await opened.disposeAsync()
    throw error
  }
}

async function migrateAndProbe (
  database: Database, url: string, config: Config, log: FastifyBaseLogger
): Promise<string> {
  const [row] = await database.read(versionStatement)
  const version = supportedVersion(row?.[0])
  if (config.MIGRATE === 'on') {
    const migrations = await migrate(url, 'up')
    if (migrations.length > 0) log.info({ migrations }, 'migrated')
  }
  await database.probe()
  return version
}

/** Repeats `attempt` until it succeeds, because the database may start after the service. */
async function untilReady (
  attempt: () => Promise<string>, log: FastifyBaseLogger, pauseMs = 100
): Promise<string> {
  try {
    return await attempt()
  } catch (error) {
    if (error instanceof UnsupportedServer) throw error
    log.warn({ reason: formatError(error) }, `the database is not ready, next attempt in ${pauseMs} ms`)
    await setTimeout(pauseMs)
    return untilReady(attempt, log, Math.min(pauseMs * 2, 2000))
  }
}
