// An identity provider for tests: a server with replaceable responses.
import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { exportJWK, generateKeyPair, SignJWT, type JWK, type JWTPayload } from 'jose'
import type { Test } from 'tap'

type Scope = Pick<Test, 'teardown'>

export const audience = 'https://plants.example'

export const acceptingJwts = (issuer: string): Record<string, string> =>
  ({ JWT_ISSUER: issuer, JWT_AUDIENCE: audience })

export async function startServer (t: Scope, listener: RequestListener) {
  // By default, Node closes idle connections after 5 s. A slow client could send a request too late.
  const server = createServer({ keepAliveTimeout: 0 }, listener)
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as AddressInfo
  async function stop (): Promise<void> {
    if (!server.listening) return
    server.closeAllConnections()
    await server[Symbol.asyncDispose]()
  }
  t.teardown(stop)
  return {
    issuer: `http://127.0.0.1:${port}`,
    stop,
    restart: () => once(server.listen(port, '127.0.0.1'), 'listening')
  }
}

export async function createKey (alg: string) {
  const { privateKey, publicKey } = await generateKeyPair(alg)
  const kid = crypto.randomUUID()
  const jwk: JWK = { ...await exportJWK(publicKey), alg, kid, use: 'sig' }
  return { alg, kid, privateKey, publicKey, jwk }
}

/** Starts a provider with one ES256 key. A test may change `keys`, or a path's response in `responses`. */
export async function startKeyServer (t: Scope) {
  const requests: string[] = []
  const key = await createKey('ES256')
  const keys: JWK[] = [key.jwk]
  const responses: Record<string, RequestListener> = {}
  const server = await startServer(t, (request, response) => {
    requests.push(request.url as string)
    responses[request.url as string]?.(request, response)
  })
  const { issuer } = server
  responses['/.well-known/openid-configuration'] = (_request, response) =>
    response.end(JSON.stringify({ issuer, jwks_uri: `${issuer}/keys` }))
  responses['/keys'] = (_request, response) => response.end(JSON.stringify({ keys }))
  return {
    ...server,
    key,
    keys,
    /** The paths of all requests so far. */
    requests,
    responses,
    /** By default the token is valid. `claims` and `header` replace fields. Undefined removes a field. */
    sign (claims: JWTPayload = {}, header: object = {}, privateKey = key.privateKey) {
      const exp = Math.floor(Date.now() / 1000) + 300
      const scope = 'plants:read plants:write'
      return new SignJWT({ iss: issuer, aud: audience, sub: 'alice', scope, exp, ...claims })
        .setProtectedHeader({ alg: 'ES256', kid: key.kid, typ: 'at+jwt', ...header })
        .sign(privateKey)
    }
  }
}
