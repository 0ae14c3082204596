// Implements the plants API with Fastify and pg in the style of their guides. Looks up each request's token
// in the database. The benchmark divides each contender's rate by the rate of this program, the yardstick.
import { createHash } from 'node:crypto'
import Fastify from 'fastify'
import pg from 'pg'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
const app = Fastify()
const text = { type: 'string' }
const plant = { type: 'object', required: ['name'], properties: { name: text, tag: text } }
const newPlant = {
  type: 'object', required: ['id', 'name'], properties: { id: { type: 'integer' }, name: text, tag: text }
}
interface NewPlant { id: number, name: string, tag?: string }

app.decorateRequest('username', '')
app.get('/livez', async () => ({}))

app.register(async (plants) => {
  plants.addHook('onRequest', async (request, reply) => {
    const token = /^Bearer (.+)$/i.exec(request.headers.authorization ?? '')?.[1] ?? ''
    const { rows: [found] } = await pool.query(
      `select username from tokens where hash = $1 and revoked_at is null
       and (expires_at is null or expires_at > now())`, [createHash('sha256').update(token).digest()])
    if (!found) return reply.code(401).send({ error: 40101, message: 'unknown token' })
    request.setDecorator('username', found.username)
  })

  plants.get<{ Querystring: { limit?: number } }>('/plants', {
    schema: {
      querystring: { type: 'object', properties: { limit: { type: 'integer', minimum: 0 } } },
      response: { 200: { type: 'array', items: plant } }
    }
  }, async (request) => {
    const { rows } = await pool.query('select name, tag from plants where owner = $1 order by id limit $2',
      [request.getDecorator('username'), request.query.limit])
    return rows.map(({ name, tag }) => tag === null ? { name } : { name, tag })
  })

  plants.post<{ Body: NewPlant }>('/plants', {
    schema: { body: newPlant, response: { 200: plant } }
  }, async (request, reply) => {
    const { id, name, tag } = request.body
    const { rowCount } = await pool.query(
      'insert into plants (owner, id, name, tag) values ($1, $2, $3, $4) on conflict do nothing',
      [request.getDecorator('username'), id, name, tag])
    if (rowCount === 0) return reply.code(400).send({ error: 40003, message: 'this id is taken' })
    return { name, tag }
  })

  plants.delete<{ Params: { id: number } }>('/plants/:id', {
    schema: { params: { type: 'object', properties: { id: { type: 'integer' } } } }
  }, async (request, reply) => {
    const { rowCount } = await pool.query('delete from plants where owner = $1 and id = $2',
      [request.getDecorator('username'), request.params.id])
    if (rowCount === 0) return reply.code(404).send({ error: 40401, message: 'no such plant' })
    return reply.code(204).send()
  })
})

await app.listen({ host: '127.0.0.1', port: Number(process.env.PORT) })
