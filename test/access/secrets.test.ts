import t from 'tap'
import { createToken } from '../../src/access/token-format.ts'
import type { NewToken } from '../../src/access/tokens.ts'
import { startApp } from '../support/app.ts'
import { createDatabase, sql } from '../support/database.ts'
import { unmeasured } from '../support/program.ts'

const { run, serve } = unmeasured

const DATABASE_URL = await createDatabase(t)
const service = await serve(t, { DATABASE_URL, LOG_LEVEL: 'trace', DRAIN_DELAY: '0' })
const { address } = service

const { tokens } = await startApp(t, { DATABASE_URL })
const create = (user: string, token: Partial<NewToken> = {}) =>
  tokens.create({ user, readOnly: false, ...token })
const full = (await run(['token', 'create', 'alice', '--label', 'laptop'], { DATABASE_URL })).stdout.trim()
const readOnly = await create('alice', { readOnly: true })
const expired = await create('alice', { expires: new Date() })
const revoked = await create('bob')
await tokens.revoke({ user: 'bob' })
const unknown = createToken()
const mistyped = full.slice(0, -1) + (full.endsWith('0') ? '1' : '0')
const secrets = [full, readOnly, expired, revoked, unknown, mistyped]

const call = (path: string, init: RequestInit = {}) =>
  fetch(address + path, init).then((response) => response.text())
const bearer = (token: string) => ({ authorization: `Bearer ${token}` })

for (const token of secrets) {
  const headers = bearer(token)
  const json = { ...headers, 'content-type': 'application/json' }
  await call('/plants', { method: 'POST', headers: json, body: '{"id": 1, "name": "Monstera"}' })
  await call('/plants', { method: 'POST', headers: json, body: '{"id": 1, "name": Monstera}' })
  await call('/plants', { headers })
  await call('/plants?limit=none', { headers })
  await call('/plants/1', { method: 'DELETE', headers })
  await call('/plants', { headers: { authorization: `Basic ${token}` } })
  await call('/plants', { headers: { authorization: token } })
  await call(`/plants?access_token=${token}`)
  await call(`/plants/${token}`, { method: 'DELETE', headers: bearer(full) })
  await call('/plants',
    { method: 'POST', headers: { ...bearer(full), 'content-type': 'application/json' }, body: token })
  await call('/plants', {
    method: 'POST',
    headers: { ...bearer(full), 'content-type': 'application/json' },
    body: `{"token": "${token}"}`
  })
}
await sql(DATABASE_URL, 'alter table plants rename column name to title')
await call('/plants', { headers: bearer(readOnly) })
await sql(DATABASE_URL, 'alter table plants rename column title to name; alter table tokens rename to hidden')
await call('/plants', { headers: bearer(revoked) })
await sql(DATABASE_URL, 'alter table hidden rename to tokens')

t.test('no column of any table holds a token', async (t) => {
  const tables = await sql(DATABASE_URL,
    'select oid::regclass::text as name from pg_class where relkind in (\'r\', \'m\')')
  // PostgreSQL shows binary columns in hexadecimal, so also search for the token in hexadecimal.
  const holders = tables.map(({ name }) =>
    `select '${name}' as name where exists (select from ${name} as t where strpos(t::text, $1) > 0 or ` +
      'strpos(t::text, encode($1::bytea, \'hex\')) > 0)')
  const search = async (text: string) =>
    (await sql(DATABASE_URL, holders.join(' union all '), [text])).map(({ name }) => name)
  for (const token of secrets) t.strictSame(await search(token.slice('plant_'.length)), [])
  t.strictSame(await search('laptop'), ['tokens'], 'the search finds a stored text')
})

t.test('no line of the log holds a token or a part of a body', async (t) => {
  service.child.kill('SIGTERM')
  await service.exited
  const log = JSON.stringify(service.log) + service.stderr()
  for (const token of secrets) t.notMatch(log, token.slice('plant_'.length, -20))
  t.notMatch(log, 'Monstera')
  const levels = new Set(service.log.map(({ level }) => level))
  for (const level of ['debug', 'error', 'info', 'trace']) {
    t.ok(levels.has(level), `the log has lines of level ${level}`)
  }
})
