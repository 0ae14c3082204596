// The page for people, put together from the document. An app of its own, since it is loaded when the
// service has long been listening.
import { readFile } from 'node:fs/promises'
import swagger, { type FastifyStaticSwaggerOptions } from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import Fastify, { errorCodes, type FastifyInstance } from 'fastify'

// Swagger UI has a dark mode but leaves switching it on to the page around it.
const followColorScheme = `const dark = matchMedia('(prefers-color-scheme: dark)')
const follow = () => document.documentElement.classList.toggle('dark-mode', dark.matches)
dark.addEventListener('change', follow)
follow()
`

/** Answers at /docs, to whoever hands it a request. */
export async function openPage (document: object): Promise<FastifyInstance> {
  const css = await readFile(new URL('docs.css', import.meta.url), 'utf8')
  const page = Fastify()
  const specification = { document } as FastifyStaticSwaggerOptions['specification']
  await page.register(swagger, { mode: 'static', specification })
  await page.register(swaggerUi, {
    routePrefix: '/docs',
    // Its files are where the page is, under whatever prefix a proxy gives.
    indexPrefix: '.',
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
  page.setNotFoundHandler(() => { throw new errorCodes.FST_ERR_NOT_FOUND() })
  await page.ready()
  return page
}
