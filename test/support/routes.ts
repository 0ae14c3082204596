/** The routes that need a token. test/access/routes.test.ts compares them with the registered routes. */
export const guardedRoutes = {
  '/plants': ['GET', 'HEAD', 'POST'],
  '/plants/:id': ['DELETE']
}

/** Routes that need no token, besides the page at /docs. */
export const openRoutes = {
  '/': ['GET', 'HEAD'],
  '/livez': ['GET', 'HEAD'],
  '/readyz': ['GET', 'HEAD'],
  '/openapi.json': ['GET', 'HEAD']
}

/** An example path of each route and its `Allow` header. */
export const examplePaths: Record<string, string> = Object.fromEntries(
  Object.entries({ ...guardedRoutes, ...openRoutes })
    .map(([url, methods]) => [url.replaceAll(/:\w+/g, '1'), methods.toSorted().join(', ')]))
