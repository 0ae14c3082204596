// Prints a token and three example commands at the first start.
import { createTokens } from '../access/tokens.ts'
import type { Database } from '../database/database.ts'

/** Prints to standard error. Standard output is the log, and the log must not contain a token. */
export async function printQuickStart (database: Database, address: string): Promise<void> {
  const tokens = createTokens(database)
  if ((await tokens.list()).length > 0) {
    console.error('To create a token: npx plant-store token create <user>')
    return
  }
  const authorization = `-H 'Authorization: Bearer ${await tokens.create({ user: 'demo', readOnly: false })}'`
  const plant = '{"id": 1, "name": "Monstera deliciosa", "tag": "tropical"}'
  console.error(`Three commands to try, with a token for the user demo that is shown only once:

curl -X POST ${address}/plants ${authorization} -H 'Content-Type: application/json' -d '${plant}'
curl ${address}/plants ${authorization}
curl -X DELETE ${address}/plants/1 ${authorization}
`)
}
