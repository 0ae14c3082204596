// Serves the reference page at /docs.
import { hash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { promisify } from 'node:util'
import { gunzip } from 'node:zlib'
import type { FastifyInstance } from 'fastify'
import { LRUCache } from 'lru-cache'
import { overloaded } from '../errors.ts'
import { addressOf } from '../http/responses.ts'
import type { MemoryBudget } from '../scheduling/memory-budget.ts'
import { clientWork } from '../scheduling/tick-limiter.ts'

// Allows inline styles, which Scalar, the page's library, inserts. Forbids inline scripts and other hosts.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; " +
  "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const pieceBytes = 65_536

const own = (name: string) => () => readFile(new URL(name, import.meta.url))
const files = {
  '/docs': { type: 'text/html; charset=utf-8', read: own('docs.html') },
  '/docs/docs.css': { type: 'text/css; charset=utf-8', read: own('docs.css') },
  '/docs/docs.js': { type: 'text/javascript; charset=utf-8', read: own('docs.js') },
  '/docs/scalar.js': { type: 'text/javascript; charset=utf-8', read: readScalar }
}

/** The relative URLs of the page work even if a proxy adds a path prefix. */
export function serveDocs (app: FastifyInstance, budget: MemoryBudget): void {
  // `LRUCache` shares a pending load between requests. After a failed load, the next request loads again.
  const loaded = new LRUCache({ max: 4, fetchMethod: load })
  for (const [url, { type, read }] of Object.entries(files)) {
    app.get(url, async (request, reply) => {
      const client = `docs ${addressOf(request)}`
      // Reserve before the load, so that the budget also limits the requests that wait for the load.
      if (!budget.reserve(client, pieceBytes, reply.raw)) throw overloaded
      const { bytes, etag } = await loaded.forceFetch(read)
      // Otherwise, all requests that wait for the load would continue in the same tick.
      await clientWork.turn(client, pieceBytes)
      reply.headers({ etag, 'cache-control': 'public, max-age=600' })
      reply.header('content-security-policy', contentSecurityPolicy)
      if (request.headers['if-none-match']?.includes(etag)) return reply.code(304).send()
      reply.type(type).header('content-length', bytes.length)
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
    if (at > 0) await clientWork.turn(client, pieceBytes)
    yield bytes.subarray(at, at + pieceBytes)
  }
}

async function load (read: () => Promise<Buffer>) {
  const bytes = await read()
  return { bytes, etag: `"${hash('sha256', bytes, 'base64url')}"` }
}

/** Scalar's browser script. `npm run scalar` writes the file. */
async function readScalar (): Promise<Buffer> {
  return promisify(gunzip)(await readFile(new URL('scalar.js.gz', import.meta.url)))
}
