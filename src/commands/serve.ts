// The command serve: opens all there is, serves until a signal, and closes it again.
import { lookup } from 'node:dns/promises'
import { setTimeout } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import { buildApp } from '../app.ts'
import type { Config } from '../config.ts'
import { describeServers } from '../database/client.ts'
import { openDatabase, type Database } from '../database/database.ts'
import { migrate } from '../database/migrate.ts'
import { supportedVersion, UnsupportedServer, versionStatement } from '../database/version.ts'
import { openTelemetry } from '../telemetry/telemetry.ts'
import { loadEmbedded } from './database.ts'
import { formatError } from './format-error.ts'
import { printQuickStart } from './quick-start.ts'
import { handleSignals } from './signals.ts'

/** Rejects, with all closed that it had opened, when it can't start: a taken port, a server too old. */
export async function serve (config: Config): Promise<void> {
  // Whatever is opened is closed in the opposite order.
  const opened = new AsyncDisposableStack()
  try {
    // For localhost itself Fastify opens one server for each address, of which buildApp knows the first.
    const { address: host } = await lookup(config.HOST, { order: 'ipv4first' }).catch(() => {
      throw new Error(`HOST: expected an address or a host name, got ${JSON.stringify(config.HOST)}`)
    })
    const embedded = config.DATABASE_URL === undefined
      ? await (await loadEmbedded()).startEmbedded(config.DATA_DIR)
      : undefined
    opened.defer(() => embedded?.close())
    const url = embedded?.url ?? config.DATABASE_URL as string
    const { STATEMENT_TIMEOUT: statementTimeoutMs, MAX_QUEUED: maxQueued } = config
    const servers = describeServers(url)
    const database = openDatabase({ url, statementTimeoutMs, maxQueued })
    opened.defer(() => database.close())
    // It connects while all else is put together.
    database.read(versionStatement).catch(() => {})
    const observers = await openTelemetry(config)
    opened.defer(async () => { await Promise.all(observers.map((observer) => observer.close())) })
    const lifecycle = { starting: true, stopping: false }
    const app = await buildApp({ config, database, lifecycle, observers, logStream: await prettyStream() })
    opened.defer(() => app.close())

    for (const { url } of observers) if (url !== undefined) app.log.info({ url }, 'metrics')
    const listenTextResolver = (url: string) => `listening on ${url}`
    // Beyond it the system drops who comes, to be tried again after one second and after three.
    const backlog = config.MAX_CONNECTIONS
    const at = { host, port: config.PORT, backlog }
    const address = await app.listen({ ...at, listenTextResolver }).catch((error) => {
      throw error.code === 'EADDRINUSE' ? new Error(`port ${config.PORT} on ${config.HOST} is in use`) : error
    })
    app.log.info({ servers }, 'database')
    handleSignals({ config, lifecycle, log: app.log, close: () => opened.disposeAsync() })

    const postgresql = await untilReady(() => prepare(database, url, config, app.log), app.log)
    if (embedded !== undefined) await printQuickStart(database, address)
    lifecycle.starting = false
    app.log.info({ version: manifest.version, node: process.versions.node, postgresql }, 'ready')
  } catch (error) {
    await opened.disposeAsync()
    throw error
  }
}

/** Readable lines on a terminal; standard output otherwise. */
async function prettyStream () {
  return process.stdout.isTTY ? (await import('pino-pretty')).default({ sync: true }) : undefined
}

/** Returns the server's version. */
async function prepare (
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

/** The database may come up after the service. */
async function untilReady (attempt: () => Promise<string>, log: FastifyBaseLogger): Promise<string> {
  let pause = 100
  const warn = (error: unknown) => {
    if (error instanceof UnsupportedServer) throw error
    log.warn({ reason: formatError(error) }, `the database is not ready, next attempt in ${pause} ms`)
  }
  let result
  while ((result = await attempt().catch(warn)) === undefined) {
    await setTimeout(pause)
    pause = Math.min(pause * 2, 2000)
  }
  return result
}
