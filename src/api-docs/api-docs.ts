// Describes the API from its own routes: a document for programs, a page for people.
import { readFile } from 'node:fs/promises'
import swagger from '@fastify/swagger'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import { errors, ErrorSchema } from '../errors.ts'
import { toApiError } from '../http/responses.ts'
import { describeErrors, describeRoute } from './openapi.ts'
import { servePageFiles } from './docs-files.ts'
import { serveRoot } from './root.ts'

// The license of the program, not the terms of whoever runs it.
const license = { name: 'MIT, for the software', identifier: 'MIT' }

// A page that shows callers' plants and holds their token runs nothing but
// these assets and talks to nothing but this service.
const contentSecurityPolicy = [
  "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'",
  "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"
].join('; ')

/**
 * Describes the routes that are registered on the app from here on, as far as
 * they carry a tag, at /openapi.json and, if wanted, for people at /docs.
 */
export async function registerApiDocs (app: FastifyInstance, { docs }: { docs: boolean }): Promise<void> {
  app.addSchema(ErrorSchema)
  const text = await readFile(new URL('description.md', import.meta.url), 'utf8')
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Plant store',
        version: manifest.version,
        description: text.replace('{{errors}}', describeErrors),
        license
      },
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
    transformObject: (given) => complete((given as { openapiObject: Document }).openapiObject)
  })

  let document: string | undefined
  app.get('/openapi.json', async function showDocument (_request, reply) {
    document ??= `${JSON.stringify(app.swagger(), null, 2)}\n`
    return reply.type('application/json').send(document)
  })

  serveRoot(app, { docs })
  if (docs) await app.register(serveDocs)
}

interface Document { paths: Record<string, Record<string, { tags: string[] }>> }

/** Adds what belongs to no single route. */
function complete (document: Document): object {
  const operations = Object.values(document.paths).flatMap((path) => Object.values(path))
  const tags = [...new Set(operations.flatMap(({ tags }) => tags))]
  // Relative to the document, so that the address is right under any prefix of a proxy.
  const servers = [{ url: '.', description: 'The service this document comes from' }]
  const describeTag = (name: string) => ({ name, description: `Operations on ${name.toLowerCase()}` })
  return { ...document, tags: tags.map(describeTag), servers }
}

/** The page is loaded when it is first asked for: that would be a tenth of the start. */
async function serveDocs (app: FastifyInstance): Promise<void> {
  app.addHook('onRequest', (_request, reply, done) => {
    reply.header('content-security-policy', contentSecurityPolicy)
    done()
  })
  servePageFiles(app)
  let page: Promise<FastifyInstance> | undefined

  // For HEAD as well, of which Fastify leaves out what is in it.
  async function show ({ url, headers }: FastifyRequest, reply: FastifyReply) {
    page ??= import('./docs-page.ts').then(({ openPage }) => openPage(app.swagger()))
    const { statusCode, headers: given, rawPayload, json } = await (await page).inject({ url, headers })
    if (statusCode >= 400) throw toApiError(json(), errors.INTERNAL)
    // How long the connection stays is not the page's to say.
    const { connection, ...own } = given
    return reply.code(statusCode).headers(own).send(rawPayload.length > 0 ? rawPayload : undefined)
  }
  app.get('/docs', show)
  app.get('/docs/*', show)
}
