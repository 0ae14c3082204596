// An OpenID provider that signs in every visitor as dave, without asking for a password.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Test } from 'tap'
import { allScopes, audience } from './identity-provider.ts'

interface Context { oidc: { client: { clientId: string }, session: { accountId: string } } }

/** Resolves to the provider's URL. The client `browser` must use PKCE. */
export async function openProvider (t: Test, redirectUri: string): Promise<string> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => { server.close(); server.closeAllConnections() })
  const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  // The package has no types. `as string` hides the import from TypeScript.
  const { errors, Provider } = await import('oidc-provider' as string)
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'browser',
      token_endpoint_auth_method: 'none',
      redirect_uris: [redirectUri],
      grant_types: ['authorization_code'],
      response_types: ['code']
    }],
    scopes: ['openid', ...allScopes.split(' ')],
    features: {
      devInteractions: { enabled: false },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => audience,
        useGrantedResource: () => true,
        getResourceServerInfo: (_context: unknown, resource: string) => {
          if (resource !== audience) throw new errors.InvalidTarget()
          return { scope: allScopes, audience, accessTokenFormat: 'jwt', jwt: { sign: { alg: 'RS256' } } }
        }
      }
    },
    interactions: { url: (_context: unknown, { uid }: { uid: string }) => `/interaction/${uid}` },
    findAccount: (_context: unknown, accountId: string) =>
      ({ accountId, claims: () => ({ sub: accountId }) }),
    loadExistingGrant: async ({ oidc: { client, session } }: Context) => {
      const grant = new provider.Grant({ clientId: client.clientId, accountId: session.accountId })
      grant.addOIDCScope(`openid ${allScopes}`)
      grant.addResourceScope(audience, allScopes)
      await grant.save()
      return grant
    }
  })
  const respond = provider.callback()
  server.on('request', (request, response) => {
    if (!request.url?.startsWith('/interaction/')) return respond(request, response)
    provider.interactionFinished(request, response, { login: { accountId: 'dave' } })
  })
  return issuer
}
