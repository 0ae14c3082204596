// The files of the page: each is in memory once, compressed. However often they are
// asked for, that takes no descriptor and no work.
import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import type { FastifyInstance } from 'fastify'

const types: Record<string, string> = {
  'index.css': 'text/css; charset=utf-8',
  'swagger-ui.css': 'text/css; charset=utf-8',
  'swagger-ui-bundle.js': 'text/javascript; charset=utf-8',
  'swagger-ui-standalone-preset.js': 'text/javascript; charset=utf-8',
  'logo.svg': 'image/svg+xml'
}

const { resolve } = createRequire(import.meta.url)
const root = join(dirname(resolve('@fastify/swagger-ui/package.json')), 'static')

interface File { plain: Buffer, packed: Buffer, tag: string }

/**
 * Answers for the large files under `/docs/static` before their plugin does.
 * Each is read when it is first asked for, and one goes out in a turn of the event loop: a thousand at
 * once would be 1.7 GB to copy, before anybody else is answered.
 */
export function servePageFiles (app: FastifyInstance): void {
  const files = new Map<string, Promise<File>>()
  let last: Promise<unknown> = Promise.resolve()
  app.addHook('onRequest', async (request, reply) => {
    const name = /^\/docs\/static\/([\w.-]+)(?:\?|$)/.exec(request.url)?.[1] ?? ''
    const type = types[name]
    if (type === undefined) return
    const file = files.get(name) ?? load(name)
    files.set(name, file)
    const { plain, packed, tag } = await file
    const accepted = request.headers['accept-encoding'] ?? ''
    const isPacked = /\bgzip\b(?!\s*;\s*q=0(?:\.0*)?(?:,|\s|$))/i.test(accepted)
    const etag = `"${tag}${isPacked ? '-gzip' : ''}"`
    reply.headers({ etag, vary: 'accept-encoding', 'cache-control': 'public, max-age=600' })
    if (request.headers['if-none-match']?.includes(etag)) return reply.code(304).send()
    if (isPacked) reply.header('content-encoding', 'gzip')
    last = last.then(() => nextTurn())
    await last
    return reply.type(type).send(isPacked ? packed : plain)
  })
}

async function load (name: string): Promise<File> {
  const plain = await readFile(join(root, name))
  const packed = await promisify(gzip)(plain, { level: 9 })
  return { plain, packed, tag: createHash('sha256').update(plain).digest('base64url').slice(0, 22) }
}
