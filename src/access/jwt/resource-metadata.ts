// Tells clients which identity provider issues tokens for this service (RFC 9728).
import type { FastifyInstance } from 'fastify'
import type { JwtSettings } from './settings.ts'

const wellKnown = '/.well-known/oauth-protected-resource'

/** Serves the metadata and adds its URL to `WWW-Authenticate` headers. `resource` is the audience of JWTs. */
export function serveResourceMetadata (
  app: FastifyInstance, settings: JwtSettings, scopes: Set<string>
): void {
  const { JWT_ISSUER: issuer, JWT_AUDIENCE: resource = '' } = settings
  // Serve metadata only for an https URL (RFC 9728).
  if (!/^https:\/\/[^\s?#]+$/.test(resource) || !URL.canParse(resource)) return
  const { origin, pathname } = new URL(resource)
  const path = wellKnown + pathname.replace(/\/$/, '')
  let route: string
  try { route = decodeURI(path).replaceAll(':', '::') } catch { return }
  // The router treats * as a wildcard, and does not find a route by an escaped reserved character.
  if (/\*|%(?:2[346a-cf]|3[abdf]|40)/i.test(path)) return
  app.addHook('onSend', (_request, reply, _payload, done) => {
    const challenge = reply.getHeader('www-authenticate')
    if (challenge !== undefined) {
      reply.header('www-authenticate', `${challenge}, resource_metadata="${origin}${path}"`)
    }
    done()
  })
  app.get(route, async function showMetadata () {
    return {
      resource,
      authorization_servers: [issuer],
      scopes_supported: [...scopes],
      bearer_methods_supported: ['header']
    }
  })
}
