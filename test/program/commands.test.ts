import t from 'tap'
import { startApp } from '../support/app.ts'
import { createDatabase } from '../support/database.ts'
import { run } from '../support/program.ts'

const DATABASE_URL = await createDatabase(t)
const token = (...args: string[]) => run(['token', ...args], { DATABASE_URL })

t.jobs = 4

t.test('every command explains itself', { buffered: true }, async (t) => {
  const mentions: Record<string, string[]> = {
    '': ['serve', 'migrate', 'token'],
    serve: ['DATABASE_URL'],
    migrate: ['up', 'down'],
    token: ['create', 'list', 'revoke'],
    'token create': ['<user>', '--expires', '90d', '--label', '--read-only'],
    'token list': ['[user]', '--json'],
    'token revoke': ['[id]', '--user']
  }
  await Promise.all(Object.entries(mentions).map(async ([command, words]) => {
    const { code, stdout, stderr } = await run([...command.split(' ').filter(Boolean), '--help'])
    t.strictSame({ code, stderr }, { code: 0, stderr: '' }, command)
    t.match(stdout, `Usage: plant-store ${command}`.trim())
    for (const word of words) t.ok(stdout.includes(word), `${command} mentions ${word}`)
  }))
})

t.test('bad arguments get one line and exit code 2', { buffered: true }, async (t) => {
  const lines: Array<[string[], RegExp]> = [
    [['serv'], /^error: unknown command 'serv' \(Did you mean serve\?\)$/],
    [['migrate', 'sideways'], /'sideways' is invalid .* Allowed choices are up, down\.$/],
    [['token', 'create'], /missing required argument 'user'$/],
    [['token', 'create', 'alice', 'bob'], /too many arguments for 'create'/],
    [['token', 'create', 'a\nb'], /'a b' is invalid .* A user name is 1 to 255 printable characters\.$/],
    [['token', 'create', 'alice', '--expires', 'soon'], /'soon' is invalid\. Expected a duration such as 90d, 12h or 30s, or a date to come such as 2027-01-01\.$/],
    [['token', 'revoke'], /^error: give either the id of a token or --user$/],
    [['token', 'create', 'alice', '--label', ''], /A label is 1 to 255 printable characters\.$/],
    [['token', 'revoke', 'x', '--user', 'alice'], /^error: give either the id of a token or --user$/]
  ]
  // A database that can't be reached: none of them gets so far.
  const unreachable = { DATABASE_URL: 'postgres://127.0.0.1:1/plants' }
  await Promise.all(lines.map(async ([args, line]) => {
    const { code, stdout, stderr } = await run(args, unreachable)
    t.strictSame({ code, stdout, lines: stderr.split('\n').length }, { code: 2, stdout: '', lines: 2 }, args.join(' '))
    t.match(stderr.trimEnd(), line)
  }))
})

t.test('token without a word of what to do shows what there is to do', { buffered: true }, async (t) => {
  const { code, stdout, stderr } = await run(['token'])
  t.strictSame({ code, stdout }, { code: 2, stdout: '' })
  t.match(stderr, /create[^]*list[^]*revoke/)
})

t.test('a token is created, listed and revoked', { buffered: true }, async (t) => {
  const created = await token('create', 'alice', '--expires', '90d', '--label', 'laptop', '--read-only')
  t.strictSame(created, { code: 0, stdout: created.stdout, stderr: '' })
  t.match(created.stdout, /^plant_[0-9a-z]{57}\n$/, 'the token and nothing else')

  const listed = await token('list', 'alice')
  t.match(listed, { code: 0, stderr: '' })
  t.match(listed.stdout, /^ID +USER +LABEL +ACCESS +CREATED +EXPIRES +STATE\n[0-9a-f]{16} +alice +laptop +read-only +\S+Z +\S+Z +active\n$/)

  const json = await token('list', 'alice', '--json')
  t.match(json, { code: 0, stderr: '' })
  const [{ id, created: at, expires }] = JSON.parse(json.stdout)
  t.match(JSON.parse(json.stdout), [{ user: 'alice', label: 'laptop', access: 'read-only', state: 'active' }])
  t.equal(Math.round((Date.parse(expires) - Date.parse(at)) / 86_400_000), 90)

  t.strictSame(await token('revoke', id), { code: 0, stdout: 'revoked 1\n', stderr: '' })
  t.match(JSON.parse((await token('list', 'alice', '--json')).stdout), [{ id, state: 'revoked' }])
  t.strictSame(await token('revoke', id), { code: 1, stdout: '', stderr: 'there is no such token that is not revoked already\n' })
})

t.test('all tokens of a user are revoked at once, and no one else\'s', { buffered: true }, async (t) => {
  const { tokens } = await startApp(t, { DATABASE_URL })
  await Promise.all(['carol', 'carol', 'dave'].map((user) => tokens.create({ user, readOnly: false })))
  t.strictSame(await token('revoke', '--user', 'carol'), { code: 0, stdout: 'revoked 2\n', stderr: '' })
  const { stdout } = await token('list', '--json')
  const states = (JSON.parse(stdout) as Array<{ user: string, state: string }>)
    .filter(({ user }) => user !== 'alice').map(({ user, state }) => `${user} ${state}`)
  t.strictSame(states.sort(), ['carol revoked', 'carol revoked', 'dave active'])
})

t.test('a wrong configuration stops any command with a line for each fault', { buffered: true }, async (t) => {
  const environment = { DATABASE_URL: 'mysql://localhost', PORT: '65536', MIGRATE: 'perhaps' }
  for (const args of [['serve'], ['token', 'list']]) {
    const { code, stdout, stderr } = await run(args, environment)
    t.strictSame({ code, stdout }, { code: 1, stdout: '' })
    t.match(stderr, /^PORT: expected .*\nDATABASE_URL: expected .*\nMIGRATE: expected .*\n$/)
  }
})

t.test('a database that can\'t be reached is told in one line', { buffered: true }, async (t) => {
  const line = 'The database cannot be reached. connect ECONNREFUSED 127.0.0.1:1\n'
  for (const MIGRATE of ['on', 'off']) {
    t.strictSame(await run(['token', 'list'], { MIGRATE, DATABASE_URL: 'postgres://127.0.0.1:1/plants' }), { code: 1, stdout: '', stderr: line })
  }
})
