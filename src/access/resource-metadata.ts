// Tells clients which identity provider issues tokens for this service (RFC 9728).
import type { FastifyInstance } from 'fastify'

const wellKnown = '/.well-known/oauth-protected-resource'

interface Resource {
  issuer: string
  /** The audience of tokens. Only an https URL has metadata. */
  resource: string
  scopes: Set<string>
}

/** Names the metadata in the challenges of guarded routes, too. Call this before any of these is added. */
export function serveResourceMetadata (
  app: FastifyInstance, guarded: FastifyInstance, { issuer, resource, scopes }: Resource
): void {
  // The router would take an asterisk for a wildcard.
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
