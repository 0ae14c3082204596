/** The routes that need a token. test/access/routes.test.ts compares them with the registered routes. */
export const guardedRoutes = {
  '/plants': ['GET', 'HEAD', 'POST'],
  '/plants/:id': ['DELETE']
}

/** The routes that need no token. The page at /docs needs none either, but is not in this list. */
export const openRoutes = {
  '/': ['GET', 'HEAD'],
  '/livez': ['GET', 'HEAD'],
  '/readyz': ['GET', 'HEAD'],
  '/openapi.json': ['GET', 'HEAD']
}

/** Maps an example path of each route to the `Allow` header of the route. */
export const examplePaths: Record<string, string> = Object.fromEntries(
  Object.entries({ ...guardedRoutes, ...openRoutes })
    .map(([url, methods]) => [url.replaceAll(/:\w+/g, '1'), methods.toSorted().join(', ')]))
