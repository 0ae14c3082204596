// Serves the OpenAPI document at /openapi.json. The root / links to it.
import { readFile } from 'node:fs/promises'
import swagger from '@fastify/swagger'
import type { FastifyInstance } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import { ErrorSchema, overloaded } from '../errors.ts'
import { addressOf } from '../http/responses.ts'
import type { MemoryBudget } from '../scheduling/memory-budget.ts'
import { serveDocs } from './docs-page.ts'
import { describeErrors, describeRoute, jwtScheme } from './openapi.ts'

/** Documents all tagged routes at /openapi.json, and at /docs if `docs` is set. Call before adding routes. */
export async function registerApiDocs (
  app: FastifyInstance, budget: MemoryBudget, { docs, issuer }: { docs: boolean, issuer: string | undefined }
): Promise<void> {
  app.addSchema(ErrorSchema)
  const text = await readFile(new URL('description.md', import.meta.url), 'utf8')
  const [description, ...sections] = text.replace('{{errors}}', describeErrors).split(/^## /m)
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      // A relative URL stays correct when a proxy adds a path prefix.
      servers: [{ url: '.', description: 'The service this document comes from' }],
      info: {
        title: 'Plant store',
        version: manifest.version,
        description,
        license: { name: 'MIT, for the software', identifier: 'MIT' }
      },
      // A tag without operations becomes a section of text on the page /docs.
      tags: sections.map((section) => {
        const [name, description] = section.split(/\n+(.*)/s) as [string, string]
        return { name, description }
      }),
      security: [{ bearerAuth: [] }],
      components: {
        securitySchemes: {
          bearerAuth: {
            type: 'http',
            scheme: 'bearer',
            description: 'A token from `plant-store token create <user>`'
          },
          ...issuer !== undefined && {
            [jwtScheme]: {
              type: 'http', scheme: 'bearer', bearerFormat: 'JWT', description: `An access token of ${issuer}`
            }
          }
        }
      }
    },
    hideUntagged: true,
    stripBasePath: false,
    refResolver: { buildLocalReference: ({ $id }) => String($id) },
    transform: ({ schema, url, route }) =>
      ({ url, schema: schema?.tags === undefined ? schema : describeRoute(schema, route, issuer) }),
  })

  let document: string | undefined
  app.get('/openapi.json', async function showDocument (request, reply) {
    document ??= `${JSON.stringify(app.swagger(), null, 2)}\n`
    if (!budget.reserve(`docs ${addressOf(request)}`, document.length, reply.raw)) throw overloaded
    return reply.type('application/json').send(document)
  })

  const links = { ...docs && { docs: './docs' }, openapi: './openapi.json' }
  app.get('/', async function showRoot ({ headers }, reply) {
    reply.header('vary', 'accept')
    if (docs && headers.accept?.includes('text/html')) return reply.redirect('./docs')
    return links
  })
  if (docs) serveDocs(app, budget)
}
