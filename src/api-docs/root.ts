// The root of the service names its documents.
import type { FastifyInstance } from 'fastify'

/** Serves `/`. The links are relative, so that they work under any prefix of a proxy. */
export function serveRoot (app: FastifyInstance, { docs }: { docs: boolean }): void {
  const links = { ...docs && { docs: './docs' }, openapi: './openapi.json' }
  app.get('/', async function showRoot ({ headers }, reply) {
    reply.header('vary', 'accept')
    if (docs && headers.accept?.includes('text/html')) return reply.redirect('./docs')
    return links
  })
}
