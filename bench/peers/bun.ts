// Implements the plants API with Bun's own server and SQL client. The SQL client prepares and pipelines
// statements. The program caches tokens for three seconds.
import { isNewPlant, readId, readLimit, cacheUsers, toPlant } from './tokens.ts'

type Row = { name: string, tag: string | null } & { username: string }
type Rows = Row[] & { count: number }
type Result = Promise<Response>
type Route = (request: Request & { params: { id: string } }) => Result | Response

// Declares the parts of Bun that this file uses. Bun's type package would add globals to the whole project.
declare const Bun: {
  SQL: new (url: string, options: { max: number }) => (text: TemplateStringsArray, ...values: unknown[]) =>
  Promise<Rows>
  serve: (options: {
    hostname: string
    port: number
    maxRequestBodySize: number
    routes: Record<string, Route | Record<string, Route>>
    fetch: Route
    error: (error: Error) => Response
  }) => void
}

const sql = new Bun.SQL(process.env.DATABASE_URL ?? '', { max: 10 })
const reject = (status: number, message: string) =>
  Response.json({ error: status * 100, message }, { status })

const authenticate = cacheUsers(async (hash) => {
  const [found] = await sql`select username from tokens where hash = ${hash} and revoked_at is null
    and (expires_at is null or expires_at > now())`
  return found?.username
})

type Operation = (owner: string, request: Parameters<Route>[0]) => Result

const guarded = (operation: Operation): Route => async (request) => {
  const owner = await authenticate(request.headers.get('authorization') ?? '')
  return owner === undefined ? reject(401, 'unknown token') : operation(owner, request)
}

async function list (owner: string, request: Request) {
  const start = request.url.indexOf('?')
  const query = new URLSearchParams(start === -1 ? '' : request.url.slice(start))
  const limit = readLimit(query.get('limit'))
  if (Number.isNaN(limit)) return reject(400, 'limit must be an integer')
  const rows = await sql`
    select name, tag from plants where owner = ${owner} order by id limit ${limit ?? null}`
  return Response.json(rows.map(toPlant))
}

async function create (owner: string, request: Request) {
  const body = await request.json().catch(() => undefined)
  if (!isNewPlant(body)) return reject(400, 'a plant has an id, a name and perhaps a tag')
  const { id, name, tag } = body
  const { count } = await sql`insert into plants (owner, id, name, tag)
    values (${owner}, ${id}, ${name}, ${tag ?? null}) on conflict do nothing`
  return count === 1 ? Response.json({ name, tag }) : reject(400, 'this id is taken')
}

async function remove (owner: string, { params }: Parameters<Route>[0]) {
  const id = readId(params.id)
  if (Number.isNaN(id)) return reject(400, 'id must be an integer')
  const { count } = await sql`delete from plants where owner = ${owner} and id = ${id}`
  return count === 1 ? new Response(null, { status: 204 }) : reject(404, 'no such plant')
}

Bun.serve({
  hostname: '127.0.0.1',
  port: Number(process.env.PORT),
  maxRequestBodySize: 1_048_576,
  routes: {
    '/livez': () => new Response(),
    '/plants': { GET: guarded(list), POST: guarded(create) },
    '/plants/:id': { DELETE: guarded(remove) }
  },
  fetch: () => reject(404, 'nothing here'),
  error: (error) => {
    console.error(error)
    return reject(500, 'internal error')
  }
})
