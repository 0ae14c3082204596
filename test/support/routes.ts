/** Whatever answers, and to which methods: test/access/routes.test.ts compares it with what is registered. */
export const guardedRoutes = {
  '/plants': ['GET', 'HEAD', 'POST'],
  '/plants/:id': ['DELETE']
}

/** What takes no token; the page, /docs, beside it. */
export const openRoutes = {
  '/': ['GET', 'HEAD'],
  '/livez': ['GET', 'HEAD'],
  '/readyz': ['GET', 'HEAD'],
  '/openapi.json': ['GET', 'HEAD']
}

/** A path of each route, and what its `Allow` says. */
export const examplePaths: Record<string, string> = Object.fromEntries(
  Object.entries({ ...guardedRoutes, ...openRoutes })
    .map(([url, methods]) => [url.replaceAll(/:\w+/g, '1'), methods.toSorted().join(', ')]))
