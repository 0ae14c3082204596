// Starts the service with JWTs, and names the responses that tests of JWTs expect.
import type { Test } from 'tap'
import { startApp } from './app.ts'
import { acceptingJwts } from './identity-provider.ts'

export const metadata = ', resource_metadata="https://plants.example/.well-known/oauth-protected-resource"'
export const invalid = {
  status: 401,
  challenge: `Bearer realm="plants", error="invalid_token"${metadata}`,
  body: { error: 40102, message: 'The bearer token is not valid.' }
}
export const pastExpiry = {
  status: 401,
  challenge:
    `Bearer realm="plants", error="invalid_token", error_description="The token has expired"${metadata}`,
  body: { error: 40102, message: 'The bearer token is not valid: it has expired.' }
}
export const unavailable = {
  status: 503,
  challenge: undefined,
  body: { error: 50306, message: 'The keys of the identity provider cannot be fetched.' }
}
export const lacks = (scope: string) => ({
  status: 403,
  challenge: `Bearer realm="plants", error="insufficient_scope", scope="${scope}"${metadata}`,
  body: { error: 40302, message: 'The bearer token lacks the scope that this operation needs.' }
})

export const success = (body: unknown, status = 200) => ({ status, challenge: undefined, body })

export async function startJwtService (t: Test, issuer: string, environment: Record<string, string>) {
  const service = await startApp(t, { ...acceptingJwts(issuer), ...environment })

  function withToken (token: string) {
    const authorization = `Bearer ${token}`
    async function send (method: 'GET' | 'POST' | 'DELETE', url: string, payload?: object) {
      const { statusCode, headers, body } =
        await service.app.inject({ method, url, headers: { authorization }, payload })
      return { status: statusCode, challenge: headers['www-authenticate'], body: body && JSON.parse(body) }
    }
    return {
      list: () => send('GET', '/plants'),
      create: (id: number, name = 'Monstera') => send('POST', '/plants', { id, name }),
      delete: (id: number) => send('DELETE', `/plants/${id}`)
    }
  }

  const rejections = () => service.log.map((line) => JSON.parse(line)).filter(({ error }) => error === 40102)
    .map(({ reason }) => reason)
  return { ...service, withToken, rejections }
}
