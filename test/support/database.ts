import { randomBytes } from 'node:crypto'
import pg from 'pg'
import type { Test } from 'tap'

/** Runs SQL past the service, on a connection of its own. */
export async function sql (url: string, text: string, values?: unknown[]): Promise<Array<Record<string, unknown>>> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    return (await client.query(text, values)).rows
  } finally {
    await client.end()
  }
}

/** The URL of a fresh database, migrated unless `template` says otherwise, dropped when the test ends. */
export async function createDatabase (t: Test, { template = 'plants_template' } = {}): Promise<string> {
  const serverUrl = process.env.TEST_DATABASE_URL
  if (serverUrl === undefined) throw new Error('Run tests by `npm test`, or one file by `npm test -- test/…`: they need a database.')
  const name = `test_${randomBytes(8).toString('hex')}`
  await sql(serverUrl, `create database ${name} template ${template}`)
  t.teardown(() => sql(serverUrl, `drop database ${name} with (force)`))
  const url = new URL(serverUrl)
  url.pathname = `/${name}`
  return url.href
}
