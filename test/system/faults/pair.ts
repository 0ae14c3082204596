import { execFile } from 'node:child_process'
import { appendFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { sql } from '../../support/database.ts'
import { freePort } from '../../support/free-port.ts'
import type { Scope } from '../../support/program.ts'
import { makeServer, runServer } from './postgres.ts'

/** Starts a primary and a synchronous standby, both with the service's tables. */
export async function startPair (scope: Scope) {
  const { url, folder, dataDir, command } = await makeServer(scope)
  const copy = join(folder, 'standby')
  // `makeServer` has stopped the server, so a copy of the data directory is a valid backup.
  await promisify(execFile)('cp', ['--archive', dataDir, copy])
  const port = await freePort()
  const { hostname, port: primaryPort } = new URL(url)
  await writeFile(join(copy, 'standby.signal'), '')
  await appendFile(join(copy, 'postgresql.auto.conf'),
    `primary_conninfo = '${url}?application_name=standby'\n`)
  await appendFile(join(dataDir, 'postgresql.auto.conf'), "synchronous_standby_names = 'standby'\n")
  const args = command.args.map((arg) => arg === dataDir ? copy : arg === primaryPort ? String(port) : arg)
  const primary = await runServer(scope, command)
  await runServer(scope, { ...command, args })
  const standbyUrl = url.replace(`:${primaryPort}/`, `:${port}/`)

  return {
    /** First the URL of the primary, then the URL of the standby. */
    urls: [url, standbyUrl] as [string, string],
    /** A connection string with both servers, the standby first. */
    url: url.replace(/@[^/]+/, `@${hostname}:${port},${hostname}:${primaryPort}`),
    stopPrimary: primary.kill,
    /** Resolves once the standby accepts writes. */
    promote: () => sql(standbyUrl, 'select pg_promote()')
  }
}
