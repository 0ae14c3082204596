// The API described from its own routes: a document for programs, a page for people.
import { readFile } from 'node:fs/promises'
import swagger from '@fastify/swagger'
import type { FastifyInstance } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import { describeErrors, describeRoute, sharedResponses, type Components } from './document.ts'
import { servePageFiles } from './page-files.ts'

/** The part of the plugin's document that is completed here. */
interface Document {
  components: { schemas: Components, responses: Components }
  paths: Record<string, Record<string, { responses: object }>>
}

// Of the program, not of who runs it and lets you call.
const license = { name: 'MIT, for the software', identifier: 'MIT' }

// A page that shows callers' plants and holds their token runs nothing but
// these assets and talks to nothing but this service.
const contentSecurityPolicy = {
  'default-src': "'none'",
  'script-src': "'self'",
  'style-src': "'self'",
  'img-src': "'self' data:",
  'connect-src': "'self'",
  'base-uri': "'none'",
  'form-action': "'none'",
  'frame-ancestors': "'none'"
}

// Swagger UI has a dark mode but leaves switching it on to the page around it.
const followColorScheme = `const dark = matchMedia('(prefers-color-scheme: dark)')
const follow = () => document.documentElement.classList.toggle('dark-mode', dark.matches)
dark.addEventListener('change', follow)
follow()
`

/**
 * Describes the routes that are registered on the app from here on, as far as
 * they carry a tag, at /openapi.json and, if wanted, for people at /docs.
 */
export async function describeApi (app: FastifyInstance, { docs }: { docs: boolean }): Promise<void> {
  const text = await readFile(new URL('reference.md', import.meta.url), 'utf8')
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
    transform: ({ schema, url, route, ...document }) => {
      if (schema?.tags === undefined) return { url, schema }
      return { url, schema: describeRoute(schema, route, documentOf(document).components.schemas) }
    },
    transformObject: (document) => complete(documentOf(document))
  })

  let document: string | undefined
  app.get('/openapi.json', async function showDocument (_request, reply) {
    document ??= `${JSON.stringify(app.swagger(), null, 2)}\n`
    return reply.type('application/json').send(document)
  })

  if (!docs) return
  const css = await readFile(new URL('reference.css', import.meta.url), 'utf8')
  await app.register(async (page) => {
    servePageFiles(page)
    await registerPage(page, css)
  })
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

async function registerPage (app: FastifyInstance, css: string): Promise<void> {
  await app.register(import('@fastify/swagger-ui'), {
    routePrefix: '/docs',
    // Its files are where the page is, under whatever prefix a proxy gives.
    indexPrefix: '.',
    staticCSP: contentSecurityPolicy,
    uiConfig: {
      layout: 'BaseLayout',
      docExpansion: 'full',
      tryItOutEnabled: true,
      displayRequestDuration: true
    },
    // The page's is /docs/json.
    transformSpecification: (document) => ({ ...document, servers: [{ url: '..' }] }),
    theme: {
      title: 'Plant store',
      js: [{ filename: 'color-scheme.js', content: followColorScheme }],
      css: [{ filename: 'page.css', content: css }]
    }
  })
}
