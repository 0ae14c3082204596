// Tells clients which identity provider issues tokens for this service (RFC 9728).
import type { FastifyInstance } from 'fastify'

const wellKnown = '/.well-known/oauth-protected-resource'

/** Serves the metadata and adds its URL to `WWW-Authenticate` headers. `resource` is the audience of JWTs. */
export function serveResourceMetadata (
  app: FastifyInstance, guarded: FastifyInstance, issuer: string, resource: string, scopes: Set<string>
): void {
  // Serve metadata only for an https URL (RFC 9728) without *, which the router would treat as a wildcard.
  if (!/^https:\/\/[^\s?#*]+$/.test(resource) || !URL.canParse(resource)) return
  const { origin, pathname } = new URL(resource)
  const path = wellKnown + pathname.replace(/\/$/, '')
  guarded.addHook('onSend', (_request, reply, _payload, done) => {
    const challenge = reply.getHeader('www-authenticate')
    if (challenge !== undefined) {
      reply.header('www-authenticate', `${challenge}, resource_metadata="${origin}${path}"`)
    }
    done()
  })
  app.get(path.replaceAll(':', '::'), async function showMetadata () {
    return {
      resource,
      authorization_servers: [issuer],
      scopes_supported: [...scopes],
      bearer_methods_supported: ['header']
    }
  })
}
