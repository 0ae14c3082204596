// The API described from its own routes: a document for programs, a page for people.
import { readFile } from 'node:fs/promises'
import swagger from '@fastify/swagger'
import type { FastifyInstance } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import { describeErrors, describeRoute, sharedResponses, type Components } from './openapi.ts'
import { serveDocs } from './docs-page.ts'

/** The part of the plugin's document that is completed here. */
interface Document {
  components: { schemas: Components, responses: Components }
  paths: Record<string, Record<string, { responses: object }>>
}

// Of the program, not of who runs it and lets you call.
const license = { name: 'MIT, for the software', identifier: 'MIT' }

/**
 * Describes the routes that are registered on the app from here on, as far as
 * they carry a tag, at /openapi.json and, if wanted, for people at /docs.
 */
export async function registerApiDocs (app: FastifyInstance, { docs }: { docs: boolean }): Promise<void> {
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
    transform: ({ schema, url, ...document }) => {
      if (schema?.tags === undefined) return { url, schema }
      return { url, schema: describeRoute(schema, documentOf(document).components.schemas) }
    },
    transformObject: (document) => complete(documentOf(document))
  })

  let document: string | undefined
  app.get('/openapi.json', async function showDocument (_request, reply) {
    document ??= `${JSON.stringify(app.swagger(), null, 2)}\n`
    return reply.type('application/json').send(document)
  })

  if (docs) serveDocs(app)
}

// The other kinds of document that it might have, the plugin has only when told to.
const documentOf = (given: unknown) => (given as { openapiObject: Document }).openapiObject

/** Adds what is no route's own. */
function complete (document: Document): object {
  document.components.responses = sharedResponses()
  for (const { responses } of Object.values(document.paths).flatMap((path) => Object.values(path))) {
    Object.assign(responses, {
      '4XX': { $ref: '#/components/responses/Unread' },
      '5XX': { $ref: '#/components/responses/Failed' }
    })
  }
  // Relative to the document, so that it holds under whatever prefix a proxy gives.
  const servers = [{ url: '.', description: 'The service this document comes from' }]
  return { ...document, servers }
}
