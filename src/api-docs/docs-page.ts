// Serves the reference page at /docs.
import { hash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { promisify } from 'node:util'
import { gunzip, gzip } from 'node:zlib'
import type { FastifyInstance } from 'fastify'
import { LRUCache } from 'lru-cache'
import { overloaded } from '../errors.ts'
import { addressOf } from '../http/responses.ts'
import type { MemoryBudget } from '../scheduling/memory-budget.ts'
import { userWork } from '../scheduling/tick-limiter.ts'
import { renderStartPage } from './start-page.ts'

// Allows inline styles, which Scalar, the page's library, inserts. Forbids inline scripts and other hosts.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; " +
  "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const pieceBytes = 65_536

interface File {
  type: string
  read: (app: FastifyInstance) => Promise<{ plain: Buffer, gzipped: Buffer }>
}

const own = (name: string) => async () => compress(await readFile(new URL(name, import.meta.url)))
const files: Record<string, File> = {
  '/docs': {
    type: 'text/html; charset=utf-8',
    read: async (app) => compress(await renderStartPage(app.swagger()))
  },
  '/docs/docs.css': { type: 'text/css; charset=utf-8', read: own('docs.css') },
  '/docs/docs.js': { type: 'text/javascript; charset=utf-8', read: own('docs.js') },
  '/docs/scalar.js': { type: 'text/javascript; charset=utf-8', read: readScalar }
}

/** The relative URLs of the page work even if a proxy adds a path prefix. */
export function serveDocs (app: FastifyInstance, budget: MemoryBudget): void {
  // `LRUCache` shares a pending load between requests. After a failed load, the next request loads again.
  const loaded = new LRUCache({ max: 4, fetchMethod: (read: File['read']) => load(app, read) })
  for (const [url, { type, read }] of Object.entries(files)) {
    app.get(url, async (request, reply) => {
      const client = `docs ${addressOf(request)}`
      // Reserve before the load, so that the budget also limits the requests that wait for the load.
      if (!budget.reserve(client, pieceBytes, reply.raw)) throw overloaded
      const { plain, gzipped } = await loaded.forceFetch(read)
      const { headers } = request
      const isGzipped = acceptsGzip.test(headers['accept-encoding'] ?? '')
      const { bytes, etag } = isGzipped ? gzipped : plain
      // Otherwise, all requests that wait for the load would continue in the same tick.
      await userWork.turn(client, pieceBytes)
      reply.headers({ etag, 'cache-control': 'public, max-age=600', vary: 'accept-encoding' })
      reply.header('content-security-policy', contentSecurityPolicy)
      if (headers['if-none-match']?.includes(etag)) return reply.code(304).send()
      reply.type(type).header('content-length', bytes.length)
      if (isGzipped) reply.header('content-encoding', 'gzip')
      // For a HEAD request, Fastify would read and discard a whole stream after the response.
      return request.method === 'HEAD' ? bytes : Readable.from(piecesOf(bytes, client), { objectMode: false })
    })
  }
  app.get('/docs/', (_request, reply) => reply.redirect('../docs', 308))
}

/** Copying a whole file to the socket at once could block the event loop for 50 ms. */
async function * piecesOf (bytes: Buffer, client: string) {
  for (let at = 0; at < bytes.length; at += pieceBytes) {
    // The request has waited for the turn of the first piece.
    if (at > 0) await userWork.turn(client, pieceBytes)
    yield bytes.subarray(at, at + pieceBytes)
  }
}

async function load (app: FastifyInstance, read: File['read']) {
  const { plain, gzipped } = await read(app)
  const digest = hash('sha256', plain, 'base64url')
  return {
    plain: { bytes: plain, etag: `"${digest}"` },
    gzipped: { bytes: gzipped, etag: `"${digest}-gzip"` }
  }
}

/** Matches an Accept-Encoding header that names gzip, unless its weight is 0. */
const acceptsGzip = /\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))/i

const compress = async (plain: Buffer) => ({ plain, gzipped: await promisify(gzip)(plain) })

/** Scalar's browser script. `npm run scalar` writes the file. */
async function readScalar () {
  const gzipped = await readFile(new URL('scalar.js.gz', import.meta.url))
  return { plain: await promisify(gunzip)(gzipped), gzipped }
}
