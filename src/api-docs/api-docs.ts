// Describes the API from its own routes: a document for programs, a page for people.
import { readFile } from 'node:fs/promises'
import swagger from '@fastify/swagger'
import type { FastifyInstance } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import { ErrorSchema } from '../errors.ts'
import { serveDocs } from './docs-page.ts'
import { describeErrors, describeRoute } from './openapi.ts'
import { serveRoot } from './root.ts'

// The license of the program, not the terms of whoever runs it.
const license = { name: 'MIT, for the software', identifier: 'MIT' }

/**
 * Describes the routes that are registered on the app from here on, as far as
 * they carry a tag, at /openapi.json and, if wanted, for people at /docs.
 */
export async function registerApiDocs (app: FastifyInstance, { docs }: { docs: boolean }): Promise<void> {
  app.addSchema(ErrorSchema)
  const text = await readFile(new URL('description.md', import.meta.url), 'utf8')
  const [description, ...sections] = text.replace('{{errors}}', describeErrors).split(/^## /m)
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Plant store',
        version: manifest.version,
        description,
        license
      },
      // A tag without operations is a section of the page.
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
          }
        }
      }
    },
    hideUntagged: true,
    convertConstToEnum: false,
    // Components are named by the ids of their schemas.
    refResolver: { buildLocalReference: ({ $id }) => String($id) },
    transform: ({ schema, url, route }) =>
      ({ url, schema: schema?.tags === undefined ? schema : describeRoute(schema, route) }),
    // Relative to the document, so that the address is right under any prefix of a proxy.
    transformObject: (given) => ({
      ...(given as { openapiObject: object }).openapiObject,
      servers: [{ url: '.', description: 'The service this document comes from' }]
    })
  })

  let document: string | undefined
  app.get('/openapi.json', async function showDocument (_request, reply) {
    document ??= `${JSON.stringify(app.swagger(), null, 2)}\n`
    return reply.type('application/json').send(document)
  })

  serveRoot(app, { docs })
  if (docs) serveDocs(app)
}
