// Tests how DATABASE_URL is read, and migrations in the schemas that it names in search_path.
// test/system/program/tls.test.ts connects with certificates.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import fc from 'fast-check'
import t from 'tap'
import { parseConnectionString, urlForm } from '../../src/database/connection-string.ts'
import { migrate, UnsupportedServer } from '../../src/database/migrate.ts'
import { openClient } from '../../src/database/servers.ts'
import { tableNames } from '../../src/domains.ts'
import { anyText } from '../support/any-text.ts'
import { createDatabase, sql } from '../support/database.ts'
import { migrations } from '../support/migrations.ts'

const fieldsOf = (url: string) => parseConnectionString(url).servers[0]?.fields()

const errorOf = (url: string): string => {
  try {
    parseConnectionString(url)
    return 'accepted'
  } catch (error) {
    return (error as Error).message
  }
}
const form = `expected ${urlForm}`
const places = 'expected a host and a port up to 65535 for each server'

t.test('every part of a connection string is decoded once', async (t) => {
  for (const [url, fields] of [
    ['postgres://plant%20store:a%2525%2Fb%40c%3F@h%2Dost:6543/my%2Fdb',
      { user: 'plant store', password: 'a%25/b@c?', host: 'h-ost', port: 6543, database: 'my/db' }],
    ['postgresql://u:a:b+c=&[d]é@h', { user: 'u', password: 'a:b+c=&[d]é', host: 'h', database: '' }],
    [' postgres://u:p@one/db\n', { user: 'u', password: 'p', host: 'one', database: 'db' }],
    ['postgres://[::1]:5432/db', { host: '::1', port: 5432 }],
    ['postgres://u@/db?host=/run/postgresql&port=5433', { user: 'u', host: '/run/postgresql', port: 5433 }],
    ['postgres://u:p@%2Frun%2Fpostgresql/db', { host: '/run/postgresql', user: 'u' }],
    ['postgres:///db?user=x%40y&password=a%2Bb', { host: '', user: 'x@y', password: 'a+b' }],
    ['postgres://h/d?application_name=garden&options=-c%20search_path%3Dgarden',
      { application_name: 'garden', options: '-c search_path=garden' }]
  ] as const) {
    t.match(fieldsOf(url), fields, url)
  }
})

t.test('settings of PostgreSQL belong into options, with their units', async (t) => {
  const url = await createDatabase(t)
  const client = await openClient(`${url}?options=-c%20lock_timeout%3D5s`, {})
  t.strictSame((await client.query('show lock_timeout')).rows, [{ lock_timeout: '5s' }])
  await client.end()
  // pg would send 5 ms.
  t.match(errorOf(`${url}?lock_timeout=5s`), /^expected only the parameters .*, got lock_timeout$/)
})

t.test('a connection string names one server or several', async (t) => {
  const { servers, target } = parseConnectionString(
    'postgres://u:p@one:5432,two,[::1]:5434/db?port=5433&target_session_attrs=primary')
  t.equal(target, 'primary')
  t.strictSame(servers.map(({ name }) => name), ['one:5432', 'two', '[::1]:5434'])
  t.match(servers.map(({ fields }) => fields()), ['one', 'two', '::1'].map((host) =>
    ({ host, port: 5433, user: 'u', password: 'p', database: 'db' })))
  t.equal(parseConnectionString('postgres://h/d').target, undefined)
  t.equal(parseConnectionString('postgres://one,two/d').target, 'read-write')
  t.equal(parseConnectionString('postgres://u@/d?host=/run/pg').servers[0]?.name, '/run/pg')
})

t.test('the connection strings of providers are accepted, without a warning', async (t) => {
  const warnings = t.capture(process, 'emitWarning')
  for (const [parameters, fields] of [
    ['', { ssl: undefined, connectionTimeoutMillis: Infinity, enableChannelBinding: false }],
    ['?sslmode=disable', { ssl: false }],
    ['?sslmode=prefer', { ssl: {} }],
    ['?sslmode=require&channel_binding=require', { ssl: {}, enableChannelBinding: true }],
    ['?sslmode=require&channel_binding=prefer', { ssl: {}, enableChannelBinding: true }],
    ['?sslmode=verify-ca&channel_binding=disable', { ssl: {}, enableChannelBinding: false }],
    ['?sslmode=no-verify', { ssl: { rejectUnauthorized: false } }],
    ['?sslnegotiation=direct', { ssl: true, sslnegotiation: 'direct' }],
    ['?sslmode=verify-full&sslrootcert=system', { ssl: { ca: Array } }],
    ['?connect_timeout=0', { connectionTimeoutMillis: Infinity }],
    ['?connect_timeout=2', { connectionTimeoutMillis: 2000 }]
  ] as const) {
    const url = `postgres://u:p@h/d${parameters}`
    t.match({ ssl: undefined, ...fieldsOf(url) }, fields, url)
    if (!url.includes('no-verify')) t.notMatch(fieldsOf(url), { ssl: { rejectUnauthorized: false } })
  }
  t.strictSame(warnings(), [])
})

t.test('a wrong parameter, host or certificate is named, without its value', async (t) => {
  const dir = t.testdir({ 'wrong.pem': 'secret' })
  const accepted = 'application_name, channel_binding, connect_timeout, host, options, password, port, ' +
    'sslcert, sslkey, sslmode, sslnegotiation, sslrootcert, target_session_attrs, user'
  for (const [url, message] of [
    ['', form],
    ['mysql://u:secret@h/d', form],
    ['postgres://u:secret@h/d#secret', form],
    ['postgres://u:secret@h/100%', form],
    ['postgres://u%00:secret@h/d', form],
    ['postgres://u:secret@h/d?application_name=secret%00', form],
    ['postgres://u:secret@h/d?user=secret@h', form],
    ['postgres://u:secret', places],
    ['postgres://u:secret@one,two:99999/d', places],
    ['postgres://u:secret@one,,two/d', places],
    ['postgres://h/d?sslmode=secret', 'expected sslmode to be one of disable, prefer, require, verify-ca, ' +
      'verify-full, no-verify'],
    ['postgres://h/d?port=65536', 'expected port to be a port up to 65535'],
    ['postgres://h/d?host=', 'expected host to be one host'],
    ['postgres:///d?host=secret1,secret2', 'expected host to be one host'],
    ['postgres://h/d?connect_timeout=1s', 'expected connect_timeout to be a number of seconds'],
    ['postgres://h/d?statement_timeout=1', `expected only the parameters ${accepted}, got statement_timeout`],
    ['postgres://h/d?secret=1', `expected only the parameters ${accepted}, got another name`],
    ['postgres://h/d?__proto__=1', `expected only the parameters ${accepted}, got another name`],
    ['postgres://h/d?sslmode=disable&sslnegotiation=direct',
      'expected another sslmode with sslnegotiation=direct'],
    ['postgres://h/d?sslrootcert=/secret', 'expected sslrootcert to name readable PEM files (ENOENT)'],
    [`postgres://h/d?sslcert=${dir}/wrong.pem&sslkey=${dir}/wrong.pem`,
      'expected sslcert and sslkey to name readable PEM files (ERR_OSSL_PEM_NO_START_LINE)']
  ] as const) {
    t.equal(errorOf(url), message, url)
  }
})

t.test('certificates are read again for each connection', async (t) => {
  const file = join(t.testdir({ 'ca.pem': 'one' }), 'ca.pem')
  const [server] = parseConnectionString(`postgres://h/d?sslrootcert=${file}`).servers
  const readCa = () => (server?.fields().ssl as { ca: string }).ca
  t.equal(readCa(), 'one')
  await writeFile(file, 'two')
  t.equal(readCa(), 'two')
})

/** Texts like the output of `openssl rand -base64`, any texts, and texts with the delimiters of URLs. */
const password = fc.oneof(
  fc.uint8Array({ minLength: 12, maxLength: 40 }).map((bytes) => Buffer.from(bytes).toString('base64')),
  // PostgreSQL accepts no password with the character NUL.
  anyText.filter((text) => text.length >= 8 && text.isWellFormed() && !text.includes('\0')),
  fc.string({ unit: fc.constantFrom(...'%/?#@[] :,&=+Zq7'), minLength: 8 })
)

/** The characters that the error advises to escape, with their escapes. */
const escapes = new Map([...urlForm.matchAll(/(\S+) as (%\w\w)/g)]
  .map(([, name = '', escape = '']) => [name === 'space' ? ' ' : name, escape]))

t.test('a password is read exactly, or the error shows nothing of it', async (t) => {
  t.strictSame([...escapes.keys()].sort(), [...' #%/?@['])
  fc.assert(fc.property(password, (password) => {
    /** Returns the password that is read, or the error. */
    function read (written: string): string | undefined {
      const url = `postgres://user:${written}@host:5433/database?sslmode=disable`
      const error = errorOf(url)
      if (error !== 'accepted') return error
      const { user, host, port, database, password } = parseConnectionString(url).servers[0]?.fields() ?? {}
      assert.deepEqual([user, host, port, database], ['user', 'host', 5433, 'database'])
      return password as string
    }
    assert.equal(read(encodeURIComponent(password)), password)
    const advised = password.replaceAll(/[ #%/?@[]/g, (character) => escapes.get(character) as string)
    if (!/\s/.test(advised)) assert.equal(read(advised), password)
    const raw = read(password)
    if (raw !== form) assert.equal(raw, decodeURIComponent(password))
    // Without a host, the password may look like one.
    const error = errorOf(`postgres://user:${password}`)
    assert.ok([form, places, 'accepted'].includes(error) || error.endsWith('got another name'), error)
  }), { numRuns: 1000 })
})

const url = await createDatabase(t, { template: 'template0' })
const inPath = (...schemas: string[]) => `${url}?options=${encodeURIComponent(`-c search_path=${schemas}`)}`
const tablesIn = async (schema: string) =>
  (await sql(url, 'select tablename from pg_tables where schemaname = $1 order by 1', [schema]))
    .map(({ tablename }) => tablename)
const all = ['migrations', ...tableNames].sort()

t.test('each schema gets tables of its own', async (t) => {
  await sql(url, 'create schema "Garden"')
  for (const [schema, target] of [['public', url], ['Garden', inPath('"Garden"')]] as const) {
    t.strictSame(await tablesIn(schema), [])
    t.strictSame(await migrate(target), migrations)
    t.strictSame(await tablesIn(schema), all)
    t.strictSame(await migrate(target), [], 'a second run has nothing to do')
  }
})

t.test('a schema with a quote in its name is rejected', async (t) => {
  for (const name of ["O'Hara", 'a"b']) {
    const quoted = `"${name.replace('"', '""')}"`
    await sql(url, `create schema ${quoted}`)
    await t.rejects(migrate(inPath(quoted)),
      { message: `The schema ${name} has a quote in its name. Rename it.` })
    t.strictSame(await tablesIn(name), [])
  }
})

t.test('a missing earlier migration is named', async (t) => {
  await sql(url, 'create schema gap')
  const target = inPath('gap')
  await migrate(target)
  await sql(url, "delete from gap.migrations where name = '0002_tokens'")
  await t.rejects(migrate(target), { message: /^Not run migration 0002_tokens is preceding already run/ })
})

t.test('tables in a later schema of search_path are not hidden by new tables', async (t) => {
  await sql(url, 'create schema empty; create table empty.other ()')
  const error = await migrate(inPath('nowhere', 'empty', 'public')).catch((error) => error)
  t.type(error, UnsupportedServer)
  t.equal(error.message, 'The tables are in the schema public, but search_path begins with empty. ' +
    'Set search_path to one of the two.')
  t.strictSame(await tablesIn('empty'), ['other'])
  await t.rejects(migrate(inPath('nowhere')), { message: 'No schema of search_path exists. Create one.' })
  // The table of another program may have the same name.
  await sql(url, 'create schema theirs; create table theirs.migrations (name text)')
  t.strictSame(await migrate(inPath('empty', 'theirs')), migrations)
  t.strictSame(await tablesIn('empty'), [...all, 'other'].sort())
})

t.test('a role that may create tables only in its own schema migrates only there', async (t) => {
  const role = `limited_${randomBytes(4).toString('hex')}`
  await sql(url, `create role ${role} login password 'secret'; create schema ${role} authorization ${role}`)
  t.teardown(() => sql(url, `drop owned by ${role}; drop role ${role}`))
  await sql(url, `drop table ${all.join()}`)
  const limited = Object.assign(new URL(url), { username: role, password: 'secret' }).href
  t.strictSame(await migrate(limited), migrations)
  t.strictSame([await tablesIn(role), await tablesIn('public')], [all, []])
  await t.rejects(migrate(`${limited}?options=-c%20search_path%3Dpublic`),
    { code: '42501', message: 'permission denied for schema public' })
})
