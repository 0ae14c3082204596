import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import t from 'tap'
import { manual, openOperator } from './operator.ts'
import { root, run, until } from './support.ts'

const { project, folder, follow, ready } = await openOperator(t)
await project.compose('up', '--detach')
await ready()

/** Returns the command of docs/data.md that matches. */
const command = (pattern: RegExp) =>
  manual['In containers']?.[0]?.split('\n').find((line) => pattern.test(line)) as string

await t.test('files are imported and exported in containers', async (t) => {
  const lines = (name: string) => readFile(join(folder, name), 'utf8')
  const unpack = async (name: string) => gunzipSync(await readFile(join(folder, name))).toString()
  await writeFile(join(folder, 'plants.csv'), 'id,name\n1,Fern\n2,Ivy\n')
  t.match(await follow('In containers'), /^alice +2 +0 /m)
  t.equal(await unpack('alice.ndjson.gz'), '{"id":1,"name":"Fern"}\n{"id":2,"name":"Ivy"}\n')
  t.match(await unpack('everything.ndjson.gz'), /^{"user":"alice","id":1,"name":"Fern"}\n/)
  t.equal(await lines('rejected.ndjson'), '')

  await writeFile(join(folder, 'plants.csv'), 'id,name\n3,Oak\nx,Elm\n')
  await t.rejects(project.sh(command(/ --skip-errors /), {}, folder), { code: 3 })
  t.match(await lines('rejected.ndjson'), /^{"line":3,.*}\n$/)
})

await t.test('Ctrl-C ends an import in a container, which then stores nothing', async (t) => {
  await writeFile(join(folder, 'plants.csv'), 'id,name\n4,Ash\n')
  const held = project.sql('begin; lock plants; select pg_sleep(600)').catch(() => {})
  const count = (which: string) => project.sql(`select count(*)
    from pg_locks join pg_stat_activity using (pid) where ${which}`)
  await until(() => count("mode = 'AccessExclusiveLock'"), (number) => number !== '0')
  // The probes of the service wait for the lock, too.
  const importWaits = () => count("not granted and application_name = 'plant-store import'")
  const options = { cwd: folder, env: project.env, stdio: 'ignore' as const, detached: true }
  const child = spawn('sh', ['-c', `exec ${command(/plants.csv$/)}`], options)
  const exited = once(child, 'exit')
  await until(importWaits, (number) => number !== '0')
  // A terminal signals the whole group.
  process.kill(-(child.pid as number), 'SIGINT')
  await exited
  await project.sql("select pg_terminate_backend(pid) from pg_locks where mode = 'AccessExclusiveLock'")
  await held
  await until(importWaits, (number) => number === '0')
  t.equal(await project.sql('select count(*) from plants where id = 4'), '0')
})

await t.test('a leaked token is revoked, and the plants that it created are deleted', async (t) => {
  const step = (block: number, environment = {}) => follow('A token has leaked', environment, block)
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
  await follow('Back up', {}, 2)
  t.equal(await send(leaked, 'DELETE', '/1'), 204)

  await writeFile(join(folder, 'token.txt'), `${leaked}\n`)
  const shown = await step(0)
  t.match(shown, /^(\w{16}) +alice .* active\nrevoked 1$/m)
  const [, TOKEN_ID] = /^(\w{16}) +alice/m.exec(shown) as RegExpExecArray
  t.match(await step(1, { TOKEN_ID }), /^ +\d "remoteAddress":"[\d.]+"$/m)
  t.match(await readFile(join(folder, 'uses.ndjson'), 'utf8'), /"method":"DELETE".*"id":"1"/)
  t.match(await step(2), /22 .* Evil "ivy"/)
  const left = await project.sql('select string_agg(name, \',\' order by id) from plants where id > 20')
  t.equal(left, 'Good fern')
  const BACKUP = (await readdir(folder)).find((name) => name.endsWith('.dump')) as string
  t.match(await step(3, { BACKUP }), /^alice\t1\tFern\t/m, 'the deleted plant')
  await until(() => send(leaked, 'GET'), (status) => status === 401)
  t.equal(await send(good, 'DELETE', '/21'), 204)
})

await t.test('the queries show who holds a lock that the service waits for', async (t) => {
  const held = project.sql('begin; lock plants; select pg_sleep(600)').catch(() => {})
  const locks = "select count(*) from pg_locks where mode = 'AccessExclusiveLock' and granted"
  await until(() => project.sql(locks), (count) => count !== '0')
  const url = await project.url()
  const response = fetch(`${url}/readyz`)
  const ask = () => follow('When something is wrong', {}, 1)
  const shown = await until(ask, (text) => /waiting_for/.test(text))
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
  const serial = join(root, 'deploy/ca/test.srl')
  t.teardown(() => Promise.all([authority, serial].map((file) => rm(file, { force: true }))))
  await mkdir(certificates)
  await project.sh(`
    cd ${certificates}
    openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=authority -days 2 -keyout ca.key -out ${authority}
    openssl req -newkey rsa:2048 -nodes -subj /CN=db.example.com -addext subjectAltName=DNS:db.example.com \\
      -keyout server.key -out server.csr
    openssl x509 -req -in server.csr -CA ${authority} -CAkey ca.key -CAcreateserial -days 2 \\
      -copy_extensions copy -out server.crt`)
  await chmod(authority, 0o644)
  const server = await run('create', `--network=${project.network}`,
    '--network-alias=db.example.com', '--network-alias=db.example.org',
    '--env=POSTGRES_PASSWORD=secret', '--entrypoint=sh', project.env.POSTGRES_IMAGE as string, '-c',
    'chown postgres /tls/server.key && chmod 600 /tls/server.key && exec docker-entrypoint.sh postgres ' +
      '--ssl=on --ssl_cert_file=/tls/server.crt --ssl_key_file=/tls/server.key')
  await run('cp', certificates, `${server}:/tls`)
  await run('start', server)

  project.env.COMPOSE_FILE += `:${join(root, 'deploy/compose/external.yml')}`
  const connect = async (host: string) => {
    const parameters = 'sslmode=verify-full&sslrootcert=/ca/test.crt'
    project.env.DATABASE_URL = `postgres://postgres:secret@${host}/postgres?${parameters}`
    await follow('Use another database')
  }
  await connect('db.example.com')
  await ready()
  const encrypted = 'select bool_and(ssl) from pg_stat_ssl join pg_stat_activity using (pid) ' +
    "where application_name = 'plant-store'"
  t.equal(await run('exec', server, 'psql', '--username=postgres', '--no-align', '--tuples-only',
    `--command=${encrypted}`), 't')

  t.equal(await project.container('database'), '', 'the included database does not run')
  const ask = ['psql', '--tuples-only', '--no-align', '--command=select current_user, count(*) from tokens']
  t.equal(await project.compose('run', '-T', '--rm', '--no-deps', 'tools', ...ask), 'postgres|0')

  await connect('db.example.org')
  const log = async () => run('logs', await project.container('plant-store'))
  await until(log, (log) => log.includes("does not match certificate's altnames"))
  t.equal((await fetch(`${await project.url()}/readyz`)).status, 503)

  // The certificate does not match `db.example.org`. So the service connects to the second host of the list.
  await connect('db.example.org,db.example.com')
  await ready()
})
