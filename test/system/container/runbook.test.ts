import { chmod, mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { openOperator, runbook } from './operator.ts'
import { root, run, until } from './support.ts'

const { project, database, folder, follow, plants, keep, ready } = await openOperator(t, 'archive')
const archive = join(folder, 'archive')
project.env.ARCHIVE = archive

await t.test('the database goes back to a point in time', async (t) => {
  const [beforehand, goBack] = runbook['Recover to a point in time'] as string[]
  await mkdir(archive)
  await follow(beforehand)
  await ready()
  await keep(1, 'Fern')
  await keep(3, 'Ivy')
  const time = await project.sql('select now()')
  await keep(4, 'Mistake')
  await follow(goBack, { UNTIL: time })
  await ready()
  t.equal(await plants(), 'Fern,Ivy')
  await keep(5, 'Oak')
  t.equal(await plants(), 'Fern,Ivy,Oak', 'the database accepts writes')
})

await t.test('a single instance is upgraded', async (t) => {
  const [upgrade] = runbook['Upgrade one instance'] as string[]
  // Change a setting. Compose then recreates the container, as for a new image.
  project.env.DOCS = 'off'
  const before = await project.container('plant-store')
  await follow(upgrade)
  await ready()
  t.not(await project.container('plant-store'), before)
})

const log = () => project.compose('logs', '--no-color', 'plant-store')

await t.test('the service logs at debug', async () => {
  await follow(runbook['Log at debug for a moment']?.[0])
  await until(log, (log) => log.includes('the log level is debug'))
})

await t.test('a leaked token is revoked, and the plants that it created are deleted', async (t) => {
  const [revoke, collect, erase] = runbook['A token has leaked'] as string[]
  const create = ['plant-store', 'token', 'create', 'alice']
  const createToken = () => project.compose('exec', '-T', 'plant-store', ...create)
  const [good, leaked] = [await createToken(), await createToken()]
  const url = `${await project.url()}/plants`
  const send = async (token: string, method: string, path = '', body?: object) => (await fetch(url + path, {
    method,
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: body && JSON.stringify(body)
  })).status
  const [fern, evil] = [{ id: 21, name: 'Good fern' }, { id: 22, name: 'Evil "ivy"' }]
  t.equal(await send(good, 'POST', '', fern), 200)
  t.equal(await send(leaked, 'POST', '', fern), 400, 'the id is taken')
  t.equal(await send(leaked, 'POST', '', evil), 200)
  t.equal(await send(leaked, 'DELETE', '/1'), 204)

  await writeFile(join(folder, 'token.txt'), `${leaked}\n`)
  const shown = await follow(revoke)
  t.match(shown, /^(\w{16}) +alice .* active\nrevoked 1$/m)
  const [, TOKEN_ID] = /^(\w{16}) +alice/m.exec(shown) as RegExpExecArray
  t.match(await follow(collect, { TOKEN_ID }), /^ +\d "remoteAddress":"[\d.]+"$/m)
  t.match(await readFile(join(folder, 'uses.ndjson'), 'utf8'), /"method":"DELETE".*"id":"1"/)
  t.match(await follow(erase), /22 .* Evil "ivy"/)
  const left = await project.sql('select string_agg(name, \',\' order by id) from plants where id > 20')
  t.equal(left, 'Good fern')
  await until(() => send(leaked, 'GET'), (status) => status === 401)
  t.equal(await send(good, 'DELETE', '/21'), 204)
})

await t.test('the queries show who holds a lock that the service waits for', async (t) => {
  const [first, queries] = runbook['When something is wrong'] as string[]
  t.match(await follow(first), /plant-store/)
  const held = project.sql('begin; lock plants; select pg_sleep(600)').catch(() => {})
  const locks = "select count(*) from pg_locks where mode = 'AccessExclusiveLock' and granted"
  await until(() => project.sql(locks), (count) => count !== '0')
  const url = await project.url()
  const response = fetch(`${url}/readyz`)
  const shown = await until(() => follow(queries), (text) => /waiting_for/.test(text))
  t.match(shown, /last_query +\| begin; lock plants/)
  t.match(shown, /application_name \| plant-store/)
  t.equal((await response).status, 503)
  const [, holder] = /holder +\| (\d+)/.exec(shown) as RegExpExecArray
  await project.sql(`select pg_terminate_backend(${holder})`)
  await held
  await ready()
})

await t.test('another database is used with verify-full and its own certificate authority', async (t) => {
  const certificates = join(folder, 'tls')
  const authority = join(root, 'deploy/ca/test.crt')
  t.teardown(() => rm(authority, { force: true }))
  await mkdir(certificates)
  await follow(`
    cd ${certificates}
    openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=authority -days 2 -keyout ca.key -out ${authority}
    openssl req -newkey rsa:2048 -nodes -subj /CN=db.example.com -addext subjectAltName=DNS:db.example.com \\
      -keyout server.key -out server.csr
    openssl x509 -req -in server.csr -CA ${authority} -CAkey ca.key -CAcreateserial -days 2 \\
      -copy_extensions copy -out server.crt`)
  await chmod(authority, 0o644)
  const server = await run('create', `--network=${project.network}`,
    '--network-alias=db.example.com', '--network-alias=db.example.org',
    '--env=POSTGRES_PASSWORD=secret', '--entrypoint=sh', database, '-c',
    'chown postgres /tls/server.key && chmod 600 /tls/server.key && exec docker-entrypoint.sh postgres ' +
      '--ssl=on --ssl_cert_file=/tls/server.crt --ssl_key_file=/tls/server.key')
  await run('cp', certificates, `${server}:/tls`)
  await run('start', server)

  const connect = async (host: string) => {
    const parameters = 'sslmode=verify-full&sslrootcert=/ca/test.crt'
    project.env.DATABASE_URL = `postgres://postgres:secret@${host}/postgres?${parameters}`
    await follow(runbook['Use another database']?.[0])
  }
  await connect('db.example.com')
  await ready()
  const encrypted = 'select bool_and(ssl) from pg_stat_ssl join pg_stat_activity using (pid) ' +
    "where application_name = 'plant-store'"
  t.equal(await run('exec', server, 'psql', '--username=postgres', '--no-align', '--tuples-only',
    `--command=${encrypted}`), 't')

  await connect('db.example.org')
  await until(log, (log) => log.includes("does not match certificate's altnames"))
  t.equal((await fetch(`${await project.url()}/readyz`)).status, 503)

  // The certificate does not match `db.example.org`. So the service connects to the second host of the list.
  await connect('db.example.org,db.example.com')
  await ready()
})
