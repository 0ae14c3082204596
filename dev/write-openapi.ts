// Writes openapi.json with the document that the service serves: npm run openapi
import { writeFile } from 'node:fs/promises'
import { buildApp } from '../src/app.ts'
import { readConfig } from '../src/config.ts'
import { openDatabase } from '../src/database/database.ts'

const config = readConfig({ LOG_LEVEL: 'warn' })
// This script runs no query, so it never connects to this URL.
const database = openDatabase({ url: 'postgres://nowhere', statementTimeoutMs: 0 })
const app = await buildApp({ config, database, lifecycle: { stopping: false } })
await writeFile('openapi.json', (await app.inject('/openapi.json')).body)
