import openapi from '../../openapi.json' with { type: 'json' }

/** The routes that need a token. test/access/credentials.test.ts checks that the app has no others. */
export const guardedRoutes = Object.fromEntries(Object.entries(openapi.paths).map(([path, operations]) => {
  const methods = Object.keys(operations).map((method) => method.toUpperCase())
  const url = path.replaceAll(/\{(\w+)\}/g, ':$1')
  return [url, methods.includes('GET') ? ['HEAD', ...methods] : methods]
}))

/** The routes that need no token. The list omits the routes of the page at /docs. */
export const openRoutes = {
  '/': ['GET', 'HEAD'],
  '/livez': ['GET', 'HEAD'],
  '/readyz': ['GET', 'HEAD'],
  '/openapi.json': ['GET', 'HEAD']
}

/** Maps an example path of each route to the route's `Allow` header. */
export const examplePaths: Record<string, string> = Object.fromEntries(
  Object.entries({ ...guardedRoutes, ...openRoutes })
    .map(([url, methods]) => [url.replaceAll(/:\w+/g, '1'), methods.toSorted().join(', ')]))
