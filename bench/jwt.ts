// Compares the request rate with the service's own tokens to the request rate with cached JWTs. Also
// measures the processor time of one check of a JWT.
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { exportJWK, generateKeyPair, SignJWT } from 'jose'
import Fastify from 'fastify'
import { createJwtAuthenticator } from '../src/access/jwt/jwt.ts'
import { createKeys } from '../src/access/jwt/keys.ts'
import { readConfig } from '../src/config.ts'
import { authenticateWith } from '../test/support/authenticate.ts'
import { round } from '../test/support/table.ts'
import { withSettings } from './contenders.ts'
import { median, type Duration } from './measure.ts'
import { alongside, createDatabase, folder, type Postgres } from './running.ts'
import { processorTable, thousandUsers, throughput } from './throughput.ts'

const audience = 'https://plants.example'
const userCount = 2001

async function startProvider () {
  const { privateKey, publicKey } = await generateKeyPair('RS256')
  const jwk = { ...await exportJWK(publicKey), alg: 'RS256', kid: 'bench' }
  const server = createServer((_request, response) => { response.end(JSON.stringify({ keys: [jwk] })) })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const sign = (user: number) =>
    new SignJWT({ iss: issuer, aud: audience, sub: String(user), scope: 'plants:read plants:write' })
      .setProtectedHeader({ alg: 'RS256', kid: 'bench', typ: 'at+jwt' })
      .setExpirationTime('1d').setIssuedAt().setJti(crypto.randomUUID())
      .sign(privateKey)
  return {
    issuer,
    signAll: () => Promise.all(Array.from({ length: userCount }, (_, user) => sign(user))),
    close: () => server.close().closeAllConnections(),
    environment: { JWT_ISSUER: issuer, JWT_AUDIENCE: audience, JWT_JWKS_URL: `${issuer}/keys` }
  }
}

type Provider = Awaited<ReturnType<typeof startProvider>>

/** Returns two processor times per round, in µs: to check an uncached token and to check a cached token. */
async function checks ({ environment, signAll }: Provider, rounds: number): Promise<number[][]> {
  const config = readConfig(environment)
  const keys = createKeys(config, Fastify().log)
  await keys.refetch()
  const scopes = new Set(['plants:read', 'plants:write'])
  const authenticate = authenticateWith(createJwtAuthenticator(keys, config, scopes))
  const figures: number[][] = []
  // The figures of round 0, the warm-up, are discarded.
  for (let turn = 0; turn <= rounds; turn++) {
    const tokens = await signAll()
    figures.push([])
    for (let pass = 0; pass < 2; pass++) {
      const before = process.cpuUsage()
      for (let at = 0; at < tokens.length; at += 50) {
        await Promise.all(tokens.slice(at, at + 50).map((token) => authenticate(token)))
      }
      const { user, system } = process.cpuUsage(before)
      figures.at(-1)?.push((user + system) / tokens.length)
    }
  }
  keys.close()
  return figures.slice(1)
}

export async function jwts (postgres: Postgres, duration: Duration): Promise<string> {
  const provider = await startProvider()
  const { environment, issuer, signAll } = provider
  const tokensFile = join(folder, 'jwts')
  writeFileSync(tokensFile, (await signAll()).join('\n'))
  const chosen = [
    withSettings('own_tokens', 'own tokens', environment),
    { ...withSettings('jwts', 'cached JWTs (RS256)', environment), tokensFile }
  ]
  const prefix = `${issuer}|`
  for (const { name } of chosen) await createDatabase(postgres.url(name), (index) => prefix + index)
  const figures = await checks(provider, duration.rounds)
  let section = ''
  await alongside(postgres, chosen, async (entries) => {
    const results = await throughput(entries,
      { loads: ['list', 'create'], connections: 64, ...duration, refill: thousandUsers(prefix) })
    const [verified, cached] = [0, 1].map((column) =>
      round(median(figures.map((figure) => figure[column] ?? NaN))))
    section = `A check of an RS256 JWT takes ${verified} µs of processor time, \
or ${cached} µs when the JWT is cached. With 64 connections, \
processor time of a request in µs, of the service and PostgreSQL together: how many times the first row:

${processorTable(results)}`
  })
  provider.close()
  return section
}
