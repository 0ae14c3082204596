import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import { asShipped, run, unmeasured } from '../../support/program.ts'

t.jobs = 4

t.test('every command explains itself', { buffered: true }, async (t) => {
  const mentions: Record<string, string[]> = {
    '': ['serve', 'migrate', 'token'],
    serve: ['DATABASE_URL'],
    migrate: ['up', 'down', '--yes', '--with-data'],
    token: ['create', 'list', 'revoke'],
    'token create': ['<user>', '--expires', '90d', '--label', '--read-only'],
    'token list': ['--user', '--json'],
    'token revoke': ['[id]', '--user']
  }
  await Promise.all(Object.entries(mentions).map(async ([command, words]) => {
    const { code, stdout, stderr } = await unmeasured.run([...command.split(' ').filter(Boolean), '--help'])
    t.strictSame({ code, stderr }, { code: 0, stderr: '' }, command)
    t.match(stdout, `Usage: plant-store ${command}`.trim())
    for (const word of words) t.ok(stdout.includes(word), `${command} mentions ${word}`)
  }))
})

t.test('the version is that of the package', { buffered: true }, async (t) => {
  t.strictSame(await run(['--version']), { code: 0, stdout: `${manifest.version}\n`, stderr: '' })
})

t.test('bad arguments get one line and exit code 2', { buffered: true }, async (t) => {
  const lines: Array<[string[], RegExp]> = [
    [['serv'], /^error: unknown command 'serv' \(Did you mean serve\?\)$/],
    [['migrate', 'sideways'], /'sideways' is invalid .* Allowed choices are up, down\.$/],
    [['migrate', 'down'], /^error: migrate down drops what the newest migration made, it needs --yes$/],
    [['token', 'create'], /missing required argument 'user'$/],
    [['token', 'create', 'alice', 'bob'], /too many arguments for 'create'/],
    [['token', 'create', 'a\nb'], /'a b' is invalid .* A user name is 1 to 255 printable characters\.$/],
    [['token', 'create', 'alice', '--expires', 'soon'], /'soon' is invalid\. Expected a duration such as 90d/],
    [['token', 'revoke'], /^error: give either the id of a token or --user$/],
    [['token', 'list', '--user', ''], /A user name is 1 to 255 printable characters\.$/],
    [['token', 'revoke', '--user', ''], /A user name is 1 to 255 printable characters\.$/],
    [['token', 'create', 'alice', '--label', ''], /A label is 1 to 255 printable characters\.$/],
    [['token', 'revoke', 'x', '--user', 'alice'], /^error: give either the id of a token or --user$/]
  ]
  // A database that can't be reached: none of them gets so far.
  const unreachable = { DATABASE_URL: 'postgres://127.0.0.1:1/plants' }
  const inMain = ['migrate down', 'token revoke']
  await Promise.all(lines.map(async ([args, line]) => {
    const start = inMain.includes(args.join(' ')) ? run : unmeasured.run
    const { code, stdout, stderr } = await start(args, unreachable)
    t.strictSame({ code, stdout, lines: stderr.split('\n').length }, { code: 2, stdout: '', lines: 2 }, args.join(' '))
    t.match(stderr.trimEnd(), line)
  }))
})

t.test('an option that npm keeps for itself makes no token', { buffered: true }, async (t) => {
  const refusal = (option: string) => ({
    code: 2,
    stdout: '',
    stderr: `error: npm has kept ${option} for itself: put -- before the first option\n`
  })
  const DATABASE_URL = 'postgres://127.0.0.1:1/plants'
  const words = ['npm', 'run', '--silent', 'token', 'create', 'alice', '--read-only']
  const env = { ...process.env, DATABASE_URL }
  t.match(await promisify(execFile)('env', [...asShipped, ...words], { env }).catch((error) => error), refusal('--read-only'))
  // The same without npm, which takes half a second.
  const kept = { DATABASE_URL, npm_config_label: 'laptop' }
  t.strictSame(await run(['token', 'create', 'alice'], kept), refusal('--label'))
})

t.test('token without a word of what to do shows what there is to do', { buffered: true }, async (t) => {
  const { code, stdout, stderr } = await unmeasured.run(['token'])
  t.strictSame({ code, stdout }, { code: 2, stdout: '' })
  t.match(stderr, /create[^]*list[^]*revoke/)
})

t.test('a wrong configuration stops any command with a line for each fault', { buffered: true }, async (t) => {
  const environment = { DATABASE_URL: 'mysql://localhost', PORT: '65536', MIGRATE: 'perhaps' }
  for (const args of [['serve'], ['token', 'list']]) {
    const { code, stdout, stderr } = await unmeasured.run(args, environment)
    t.strictSame({ code, stdout }, { code: 1, stdout: '' })
    t.match(stderr, /^PORT: expected .*\nDATABASE_URL: expected .*\nMIGRATE: expected .*\n$/)
  }
})

t.test('a database that can\'t be reached is told in one line', { buffered: true }, async (t) => {
  const line = 'The database cannot be reached. connect ECONNREFUSED 127.0.0.1:1\n'
  for (const MIGRATE of ['on', 'off']) {
    t.strictSame(await unmeasured.run(['token', 'list'], { MIGRATE, DATABASE_URL: 'postgres://127.0.0.1:1/plants' }), { code: 1, stdout: '', stderr: line })
  }
})
