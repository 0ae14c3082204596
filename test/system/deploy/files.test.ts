import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import '../../../src/app.ts'
import { formerNames, settings } from '../../../src/config.ts'
import { catalogue } from '../../../src/errors.ts'
import { runbook } from '../container/runbook.ts'

const execute = promisify(execFile)
const root = join(import.meta.dirname, '../../..')
const read = (name: string) => readFile(join(root, name), 'utf8')

t.test('the compose files start the image of this version', async (t) => {
  const { version } = JSON.parse(await read('package.json'))
  for (const name of ['docker-compose.yml', 'docker-compose.rolling.yml']) {
    t.match(await read(name), `image: \${PLANT_STORE_IMAGE:-localhost/plant-store:${version}}\n`, name)
  }
})

t.test('every setting can be given in .env', async (t) => {
  const service = (await read('deploy/service.yml')).split('  database:', 1)[0] as string
  const passed = [...service.matchAll(/^ {6}([A-Z_]+):/gm)].map(([, name]) => name)
  // The last is for the database that the files bring along, the others stand for something else there.
  const others = { HOST: 'in the image', PORT: 'the published one', DATA_DIR: 'no database of its own' }
  const names = [...Object.keys(settings), ...Object.values(formerNames)].filter((name) => !(name in others))
  t.strictSame(passed.sort(), [...names, 'PGPASSWORD'].sort())
})

t.test('what a proxy says itself bears the service\'s number for it, or one of the proxies\' own', async (t) => {
  const documented = [...(await read('docs/operating.md')).matchAll(/^\| (\d{3}91) \| (.*?) \|/gm)].map(([, number, message]) => `${number} ${message}`)
  const known = new Set([...documented, ...[...catalogue.values()].map(({ number, message }) => `${number} ${message}`)])
  const said = new Set<string>()
  const answers = /"error":(\d{5}),"message":"(.*?)"|\/errors\/(\d{5}) "(.*?)"/g
  const files = (await readdir(join(root, 'deploy/errors'))).map((name) => `deploy/errors/${name}`)
  for (const file of [...files, 'deploy/haproxy.cfg', 'deploy/nginx.conf']) {
    for (const [, number, message, other, text] of (await read(file)).matchAll(answers)) said.add(`${number ?? other} ${message ?? text}`)
  }
  t.strictSame([...said].filter((answer) => !known.has(answer)), [])
  t.strictSame(documented.filter((answer) => !said.has(answer)), [])
  t.notOk([...catalogue.keys()].some((number) => number % 100 > 90), 'and the service has none of theirs')
})

t.test('each section of the runbook with command lines is run by the container suite', async (t) => {
  const tests = await Promise.all(['runbook', 'rolling'].map((name) => read(`test/system/container/${name}.test.ts`)))
  const run = new Set([...tests.join().matchAll(/runbook\['(.*?)'\]/g)].map(([, heading]) => heading))
  const written = Object.keys(runbook).filter((heading) => runbook[heading]?.length !== 0)
  t.strictSame([...run].sort(), written.sort())
})

const isCheckout = existsSync(join(root, '.git'))
t.test('a checkout on Windows has no line ends that a shell would trip over', { skip: !isCheckout && 'no repository' }, async (t) => {
  const copy = join(t.testdir(), 'copy')
  await execute('git', ['clone', '--quiet', '--depth=1', '--config=core.autocrlf=true', `file://${root}`, copy])
  const { stdout } = await execute('git', ['-C', copy, 'ls-files', '--eol'])
  t.strictSame(stdout.split('\n').filter((line) => /w\/(crlf|mixed)/.test(line)), [])
  t.match(stdout, /w\/lf.*deploy\/create-role\.sh/)
})
