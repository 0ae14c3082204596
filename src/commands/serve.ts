import { lookup } from 'node:dns/promises'
import { Session } from 'node:inspector/promises'
import { setTimeout } from 'node:timers/promises'
import closeWithGrace from 'close-with-grace'
import type { FastifyBaseLogger } from 'fastify'
import { createTokens } from '../access/tokens.ts'
import { buildApp } from '../app.ts'
import type { Config } from '../config.ts'
import { openDatabase, type Database } from '../database/database.ts'
import { startEmbedded } from '../embedded/embedded.ts'
import { migrate } from '../database/migrate.ts'

/** Serves until a signal. Rejects when it can't start: the port or the data folder is taken. */
export async function serve (config: Config): Promise<void> {
  // For localhost itself Fastify opens one server for each address, of which hardenProtocol knows the first.
  const { address: host } = await lookup(config.HOST, { order: 'ipv4first' })
  const embedded = config.DATABASE_URL === undefined ? await startEmbedded(config.DATA_DIR) : undefined
  const url = embedded?.url ?? config.DATABASE_URL as string
  const database = openDatabase({ url, statementTimeoutMs: config.STATEMENT_TIMEOUT, maxWaiting: config.MAX_WAITING })
  const lifecycle = { starting: true, stopping: false }
  const app = await buildApp({ config, database, lifecycle, logStream: process.stdout.isTTY ? (await import('pino-pretty')).default({ sync: true }) : undefined })

  const address = await app.listen({
    host,
    port: config.PORT,
    listenTextResolver: (url) => `listening on ${url}`
  }).catch(async (error) => {
    await embedded?.close()
    throw error.code === 'EADDRINUSE' ? new Error(`port ${config.PORT} on ${config.HOST} is in use`) : error
  })
  closeWithGrace({ delay: config.SHUTDOWN_TIMEOUT, logger: app.log }, async ({ signal, err }) => {
    lifecycle.stopping = true
    if (err) app.log.fatal({ err }, 'uncaught error')
    else app.log.info({ signal }, 'stopping')
    // Balancers go on sending requests until they have seen /readyz fail.
    // Nobody balances what is stopped from a terminal, or broken.
    if (signal === 'SIGTERM') await setTimeout(config.DRAIN_DELAY)
    await app.close()
    await database.close()
    await embedded?.close()
    app.log.info('stopped')
  })
  await untilReady(async () => {
    if (config.MIGRATE === 'on') {
      const migrations = await migrate(url, 'up')
      if (migrations.length > 0) app.log.info({ migrations }, 'migrated')
    }
    await database.probe()
    if (embedded !== undefined) await greet(database, address)
  }, app.log)
  await collectGarbage()
  lifecycle.starting = false
  app.log.info('ready')
}

/** Starting leaves behind a ninth of the memory, and V8 gives back none of it while nothing happens. */
async function collectGarbage (): Promise<void> {
  const session = new Session()
  session.connect()
  await session.post('HeapProfiler.collectGarbage')
  session.disconnect()
}

/** The database may come up after the service. */
async function untilReady (attempt: () => Promise<void>, logger: FastifyBaseLogger): Promise<void> {
  let pause = 100
  const warn = (error: unknown) => {
    logger.warn({ err: error }, `the database is not ready, next attempt in ${pause} ms`)
    return false
  }
  while (!await attempt().then(() => true, warn)) {
    await setTimeout(pause)
    pause = Math.min(pause * 2, 2000)
  }
}

// On standard error: standard output is the log, in which no token may appear.
async function greet (database: Database, address: string): Promise<void> {
  const tokens = createTokens(database)
  if ((await tokens.list()).length > 0) {
    console.error('To make a token: npx plant-store token create <user>')
    return
  }
  const authorization = `-H 'Authorization: Bearer ${await tokens.create({ user: 'demo', readOnly: false })}'`
  console.error(`A token for user demo, shown only now, in three lines to try:

curl -X POST ${address}/plants ${authorization} -H 'Content-Type: application/json' -d '{"id": 1, "name": "Monstera deliciosa", "tag": "tropical"}'
curl ${address}/plants ${authorization}
curl -X DELETE ${address}/plants/1 ${authorization}
`)
}
