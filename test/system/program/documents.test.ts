// Every command line of the documents does what it says, is run by another test,
// or is named here with the reason why not.
import { execFile } from 'node:child_process'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import { runbook } from '../container/runbook.ts'
import { startApp } from '../../support/app.ts'
import { asShipped, program } from '../../support/program.ts'

const root = join(import.meta.dirname, '../../..')
const read = (file: string) => readFile(join(root, file), 'utf8')

const programs = 'npm|npx|node|docker|plant-store|curl|kubectl|git|grep|export'
const isCommand = new RegExp(`^([A-Z_]+=\\S+ )*(${programs}) \\S`)

/** The lines of shell in a document, and what stands in a sentence as a command. */
function commandsIn (text: string): string[] {
  const blocks = [...text.matchAll(/^```sh\n(.*?)^```|^ {4}(\S[^\n]*)$/gms)]
    .map(([, lines, line]) => lines ?? line as string)
  // A line that ends in \ or | goes on in the next one.
  const lines = blocks.flatMap((block) => block.replaceAll(/\\\n\s*|(?<=\|)\n\s*/g, ' ').split('\n'))
  const sentences = text.replaceAll(/^```.*?^```/gms, '')
  const inline = [...sentences.matchAll(/`([^`]+)`/g)]
    .map(([, code = '']) => code.replaceAll(/\s+/g, ' '))
    .filter((code) => isCommand.test(code))
  return [...lines, ...inline]
    .map((line) => line.replace(/\s+#.*/, '').replaceAll(/\s+/g, ' ').trim())
    .filter((line) => line !== '')
}

// All of its blocks are run by the container suite, see test/system/deploy/files.test.ts.
const runbookLines = Object.values(runbook).flat().flatMap((block) => commandsIn(`\`\`\`sh\n${block}\`\`\``))

/** Which test runs it, as it stands or nearly so. */
const runBy: Record<string, string[]> = {
  'test/system/container/fresh.sh': ['npm ci', 'npm ci && npm test', 'npm test'],
  'test/check.test.ts': ['npm run check'],
  'test/system/program/starts.test.ts': ['npm ci && npm start', 'npm run dev'],
  'test/api-docs/openapi.test.ts': ['npm run openapi'],
  '.github/workflows/ci.yml': ['npm run test:container', 'npm run test:scale'],
  'test/system/faults/short.test.ts': ['npm run test:faults', 'npm run test:faults -- --seed 20261128',
    'npm run test:faults -- --only attacks'],
  'test/system/container/compose.test.ts': [
    'docker compose up --detach --build', 'docker compose down', 'docker stop',
    'docker compose exec plant-store plant-store token create alice',
    'docker compose exec plant-store plant-store token list'
  ],
  'test/system/container/image.test.ts': [
    'docker run --rm --env DATABASE_URL=… localhost/plant-store token list'
  ],
  'test/system/container/rolling.test.ts': [
    'export COMPOSE_FILE=docker-compose.rolling.yml', 'docker compose build && docker compose up --detach',
    'for i in plant-store plant-store-2 plant-store-3; do'
  ]
}

/** Why no test runs it. */
const notRun: Record<string, string[]> = {
  'It changes the checkout or the machine.': ['git pull', 'npm version --no-git-tag-version', 'npm install --global bun'],
  'It measures for minutes, or until somebody stops it.': [
    'npm run bench', 'npm run bench -- --large', 'npm run bench -- --only \'\' --large',
    'npm run bench -- --seconds 2 --rounds 2 --only list,create',
    'BEFORE=../before npm run bench -- --only before',
    'node bench/scale.ts', 'node --cpu-prof src/main.ts serve'
  ],
  'A suite of its own, for which CI has no time, or one file of all.': [
    'npm run test:observability', 'npm run fuzz -- --count 20000',
    'npm test -- --disable-coverage test/plants/list.test.ts', 'node test/run.ts …'
  ],
  'It draws for people, with images that only a registry has.': [
    'node test/system/observability/draw.ts',
    'docker compose --file docker-compose.yml --file deploy/observability/docker-compose.yml up --detach'
  ],
  'It takes an image of a version before.': [
    'PLANT_STORE_IMAGE=localhost/plant-store:1.0.0 docker compose up --detach --no-deps plant-store'
  ],
  'It takes a cluster.': [
    'kubectl apply --filename deploy/kubernetes/production/namespace.yaml',
    'kubectl create secret generic plant-store-database --namespace plant-store ' +
      '--from-literal=url=postgres://… --from-literal=migration-url=postgres://…',
    'kubectl delete job plant-store-migration --namespace plant-store --ignore-not-found',
    'kubectl kustomize deploy/kubernetes/production | ' +
      'kubectl apply --selector app.kubernetes.io/component=migration --filename -',
    'kubectl wait job/plant-store-migration --namespace plant-store --for=condition=complete --timeout=15m',
    'kubectl apply --kustomize deploy/kubernetes/production'
  ],
  'It only shows what is there.': [
    'docker compose logs plant-store | grep <id>', 'docker compose logs --tail 50 plant-store',
    'grep \'"error":50001\''
  ],
  'An example of a value.': ['export UNTIL=\'2027-01-31 14:05:00+00\'']
}

const elsewhere = new Set([...runbookLines, ...Object.values(runBy).flat(), ...Object.values(notRun).flat()])
const runHere = /^((npx )?plant-store|curl localhost:3000)\b/

const inDocs = (await readdir(join(root, 'docs'))).filter((name) => name.endsWith('.md'))
const documents = ['README.md', 'CONTRIBUTING.md', 'SECURITY.md', ...inDocs.map((name) => `docs/${name}`)]
const texts = await Promise.all(documents.map(read))
const commands = new Set(texts.flatMap(commandsIn))

t.test('every command line of the documents is run by a test, or named as one that is not', async (t) => {
  const unknown = [...commands].filter((command) => !runHere.test(command) && !elsewhere.has(command))
  t.strictSame(unknown, [])
  const gone = [...elsewhere].filter((command) => !commands.has(command))
  t.strictSame(gone, [], 'and what is named stands in a document')
  for (const [file, lines] of Object.entries(runBy)) {
    const text = await read(file)
    // A test in TypeScript calls what the line calls in its own way.
    if (!file.endsWith('.ts')) for (const line of lines) t.ok(text.includes(line), line)
  }
})

t.test('the scripts that the documents name are in package.json', async (t) => {
  const named = texts.join().matchAll(/npm run ([\w:]+)/g)
  for (const [, script = ''] of named) t.ok(script in manifest.scripts, script)
})

t.test('the commands of the documents do what they say', async (t) => {
  const { url, tokens, as, listen } = await startApp(t)
  await tokens.create({ user: 'bob', readOnly: false })
  const [bobs] = await tokens.list('bob')
  const carol = await as('carol')
  const address = await listen()
  const env = { ...process.env, DATABASE_URL: url, TOKEN: carol.authorization.replace('Bearer ', '') }
  const answers: string[] = []
  for (const command of commands) {
    if (!runHere.test(command)) continue
    const line = command.replace('<id>', bobs?.id as string).replace('<user>', 'bob')
      // commands.test.ts has one by way of npx, which takes two seconds.
      .replace(/^(npx )?plant-store/, program.join(' '))
      .replace('localhost:3000', `--silent --show-error --fail ${address}`)
    const done = promisify(execFile)('env', [...asShipped, 'sh', '-c', line], { cwd: root, env })
    await t.resolves(done, command)
    if (command.startsWith('curl')) answers.push((await done).stdout)
  }
  t.match(await tokens.list('alice'), [{ label: 'laptop' }, { label: 'dashboard', readOnly: true }, { readOnly: true }])
  t.match(await tokens.list('bob'), [{ revoked: Date }])
  t.strictSame(answers, ['{"name":"Monstera"}', '[{"name":"Monstera"}]', ''])
})

t.test('the version stands in package.json, and what can\'t take it from there has the same', async (t) => {
  const variants = ['rolling', 'failover', 'pgbouncer', 'citus'].map((variant) => `docker-compose.${variant}.yml`)
  for (const file of ['Dockerfile', 'docker-compose.yml', ...variants, 'deploy/kubernetes/production/kustomization.yaml']) {
    const versions = (await read(file)).match(/(?<=image\.version="|plant-store:|newTag: )\d+\.\d+\.\d+/g)
    t.strictSame([...new Set(versions)], [manifest.version], file)
  }
})
