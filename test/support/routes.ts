/** The routes that need a token. test/access/credentials.test.ts checks that the list is complete. */
export const guardedRoutes = {
  '/plants': ['GET', 'HEAD', 'POST'],
  '/plants/:id': ['DELETE']
}

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
