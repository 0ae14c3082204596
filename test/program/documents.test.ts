import { execFile } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import manifest from '../../package.json' with { type: 'json' }
import { startApp } from '../support/app.ts'
import { withoutHooks } from '../support/program.ts'

const root = join(import.meta.dirname, '../..')
const read = (file: string) => readFile(join(root, file), 'utf8')

/** The lines of shell in the documents, and what stands in a sentence as a command. */
async function commandsIn (file: string): Promise<string[]> {
  const text = await read(file)
  const blocks = [...text.matchAll(/^```sh\n(.*?)^```/gms)].flatMap(([, block = '']) => block.split('\n'))
  const inline = [...text.replaceAll(/^```.*?^```/gms, '').matchAll(/`([^`]+)`/g)].map(([, code = '']) => code)
  return [...blocks, ...inline].map((line) => line.replace(/ +#.*/, '')).filter((line) => /^(npm|npx|plant-store) /.test(line))
}

// Run by a person, by CI or by another test.
const runElsewhere = new Set([
  'npm ci && npm start', 'npm ci && npm test', 'npm ci', 'npm start', 'npm test', 'npm run dev', 'npm run check', 'npm run test:container',
  'npm run test:scale',
  'npm run test:faults', 'npm run test:faults -- --seed 20261123', 'npm run openapi', 'npm run bench -- --large',
  'npm version --no-git-tag-version', 'npm run test:suite -- --disable-coverage test/plants/list.test.ts'
])

t.test('the commands of the documents do what they say', async (t) => {
  const { url, tokens } = await startApp(t)
  await tokens.create({ user: 'bob', readOnly: false })
  const [bobs] = await tokens.list('bob')
  const documents = ['README.md', 'CONTRIBUTING.md', 'docs/operating.md', 'docs/runbook.md', 'docs/reliability.md', 'docs/scaling.md']
  const commands = new Set((await Promise.all(documents.map(commandsIn))).flat())
  for (const command of commands) {
    if (runElsewhere.has(command)) continue
    const [program, ...words] = command.replace('<id>', bobs?.id as string).replace('<user>', 'bob').split(' ')
    const file = program === 'npm' ? 'npm' : join(root, 'src/main.ts')
    const done = promisify(execFile)('env', [...withoutHooks, file, ...words], { cwd: root, env: { ...process.env, DATABASE_URL: url } })
    await t.resolves(done, command)
  }
  t.match(await tokens.list('alice'), [{ label: 'laptop' }, { label: 'dashboard', readOnly: true }, { readOnly: true }])
  t.match(await tokens.list('bob'), [{ revoked: Date }])
})

t.test('the version stands in package.json, and what can\'t take it from there has the same', async (t) => {
  const variants = ['rolling', 'failover', 'pgbouncer', 'citus'].map((variant) => `docker-compose.${variant}.yml`)
  for (const file of ['Dockerfile', 'docker-compose.yml', ...variants, 'deploy/kubernetes/production/kustomization.yaml']) {
    const versions = (await read(file)).match(/(?<=image\.version="|plant-store:|newTag: )\d+\.\d+\.\d+/g)
    t.strictSame([...new Set(versions)], [manifest.version], file)
  }
})
