// Tells clients which identity provider issues tokens for this service (RFC 9728).
import type { FastifyInstance } from 'fastify'

const wellKnown = '/.well-known/oauth-protected-resource'

/** Does so where `resource`, the audience of tokens, is an https URL. Call this before any route is added. */
export function serveResourceMetadata (
  app: FastifyInstance, guarded: FastifyInstance, { issuer, resource }: { issuer: string, resource: string }
): void {
  // The router would take an asterisk for a wildcard.
  if (!/^https:\/\/[^\s?#*]+$/.test(resource) || !URL.canParse(resource)) return
  const { origin, pathname } = new URL(resource)
  const path = wellKnown + pathname.replace(/\/$/, '')
  const scopes = new Set<string>()
  guarded.addHook('onRoute', ({ config }) => {
    if (config?.scope !== undefined) scopes.add(config.scope)
  })
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
