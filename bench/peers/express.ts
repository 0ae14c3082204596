// Implements the plants API with Express 5 and pg. Looks up the token of each request in the database.
import { createHash } from 'node:crypto'
import express, { type NextFunction, type Request, type Response } from 'express'
import pg from 'pg'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
const app = express()
app.disable('x-powered-by')
app.get('/livez', (_request, response) => { response.sendStatus(200) })

app.use(async (request, response, next) => {
  const token = /^Bearer (.+)$/i.exec(request.headers.authorization ?? '')?.[1] ?? ''
  const { rows: [found] } = await pool.query(
    `select username from tokens where hash = $1 and revoked_at is null
     and (expires_at is null or expires_at > now())`, [createHash('sha256').update(token).digest()])
  if (!found) return response.status(401).json({ error: 40101, message: 'unknown token' })
  response.locals.owner = found.username
  next()
})

app.get('/plants', async (request, response) => {
  const { limit } = request.query
  if (limit !== undefined && !/^\d+$/.test(String(limit))) {
    return response.status(400).json({ error: 40001, message: 'limit must be an integer' })
  }
  const { rows } = await pool.query('select name, tag from plants where owner = $1 order by id limit $2',
    [response.locals.owner, limit ?? null])
  response.json(rows.map(({ name, tag }) => tag === null ? { name } : { name, tag }))
})

app.post('/plants', express.json(), async (request, response) => {
  const { id, name, tag } = request.body ?? {}
  const isText = typeof name === 'string' && ['string', 'undefined'].includes(typeof tag)
  if (!Number.isSafeInteger(id) || !isText) {
    return response.status(400).json({ error: 40002, message: 'a plant has an id, a name and perhaps a tag' })
  }
  const { rowCount } = await pool.query(
    'insert into plants (owner, id, name, tag) values ($1, $2, $3, $4) on conflict do nothing',
    [response.locals.owner, id, name, tag])
  if (rowCount === 0) return response.status(400).json({ error: 40003, message: 'this id is taken' })
  response.json({ name, tag })
})

app.delete('/plants/:id', async (request, response) => {
  if (!/^-?\d{1,18}$/.test(request.params.id)) {
    return response.status(400).json({ error: 40004, message: 'id must be an integer' })
  }
  const { rowCount } = await pool.query(
    'delete from plants where owner = $1 and id = $2', [response.locals.owner, request.params.id])
  if (rowCount === 0) return response.status(404).json({ error: 40401, message: 'no such plant' })
  response.status(204).end()
})

app.use((error: Error & { status?: number }, _request: Request, response: Response, _next: NextFunction) => {
  const status = error.status ?? 500
  const message = status < 500 ? error.message : 'internal error'
  response.status(status).json({ error: status * 100, message })
})

app.listen(Number(process.env.PORT), '127.0.0.1')
