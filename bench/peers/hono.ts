// Implements the plants API with Hono on Node and postgres.js. postgres.js prepares and pipelines statements.
// The program caches tokens for three seconds.
import { serve } from '@hono/node-server'
import { Hono, type Context } from 'hono'
import { bodyLimit } from 'hono/body-limit'
import postgres from 'postgres'
import { isNewPlant, readId, readLimit, cacheUsers, toPlant } from './tokens.ts'

const sql = postgres(process.env.DATABASE_URL ?? '', { max: 10 })
const app = new Hono<{ Variables: { owner: string } }>()

const reject = (context: Context, status: 400 | 401 | 404 | 413 | 500, message: string) =>
  context.json({ error: status * 100, message }, status)

const authenticate = cacheUsers(async (hash) => {
  const [found] = await sql`select username from tokens where hash = ${hash} and revoked_at is null
    and (expires_at is null or expires_at > now())`
  return found?.username
})

app.get('/livez', (context) => context.body(null))

app.use('/plants/*', async (context, next) => {
  const owner = await authenticate(context.req.header('authorization'))
  if (owner === undefined) return reject(context, 401, 'unknown token')
  context.set('owner', owner)
  await next()
})

app.get('/plants', async (context) => {
  const limit = readLimit(context.req.query('limit'))
  if (Number.isNaN(limit)) return reject(context, 400, 'limit must be an integer')
  const rows = await sql<{ name: string, tag: string | null }[]>`
    select name, tag from plants where owner = ${context.var.owner} order by id limit ${limit ?? null}`
  return context.json(rows.map(toPlant))
})

const limitBody = bodyLimit({
  maxSize: 1_048_576,
  onError: (context) => reject(context, 413, 'the body is too large')
})

app.post('/plants', limitBody, async (context) => {
  const body: unknown = await context.req.json().catch(() => undefined)
  if (!isNewPlant(body)) return reject(context, 400, 'a plant has an id, a name and perhaps a tag')
  const { id, name, tag } = body
  const { count } = await sql`insert into plants (owner, id, name, tag)
    values (${context.var.owner}, ${id}, ${name}, ${tag ?? null}) on conflict do nothing`
  return count === 1 ? context.json({ name, tag }) : reject(context, 400, 'this id is taken')
})

app.delete('/plants/:id', async (context) => {
  const id = readId(context.req.param('id'))
  if (Number.isNaN(id)) return reject(context, 400, 'id must be an integer')
  const { count } = await sql`delete from plants where owner = ${context.var.owner} and id = ${id}`
  return count === 1 ? context.body(null, 204) : reject(context, 404, 'no such plant')
})

app.notFound((context) => reject(context, 404, 'nothing here'))
app.onError((error, context) => {
  console.error(error)
  return reject(context, 500, 'internal error')
})

serve({ fetch: app.fetch, hostname: '127.0.0.1', port: Number(process.env.PORT) })
