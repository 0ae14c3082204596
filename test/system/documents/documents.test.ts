// Runs the documented commands of the programs plant-store and curl.
import { execFile } from 'node:child_process'
import { access, readdir, readFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import { runbook } from '../container/runbook.ts'
import { startApp } from '../../support/app.ts'
import { asShipped, program } from '../../support/program.ts'

const root = join(import.meta.dirname, '../../..')
const read = (file: string) => readFile(join(root, file), 'utf8')

const programs = 'npm|npx|node|docker|plant-store|curl|kubectl|git|grep|export'
const isCommand = new RegExp(`^([A-Z_]+=\\S+ )*(${programs}) \\S`)

/** Returns the shell lines of a document, and the commands quoted in its sentences. */
function commandsIn (text: string): string[] {
  const blocks = [...text.matchAll(/^```sh\n(.*?)^```|^ {4}(\S[^\n]*)$/gms)]
    .map(([, lines, line]) => lines ?? line as string)
  // A line that ends with \ or | continues on the next line.
  const lines = blocks.flatMap((block) => block.replaceAll(/\\\n\s*|(?<=\|)\n\s*/g, ' ').split('\n'))
  const sentences = text.replaceAll(/^```.*?^```/gms, '')
  const inline = [...sentences.matchAll(/`([^`]+)`/g)]
    .map(([, code = '']) => code.replaceAll(/\s+/g, ' '))
    .filter((code) => isCommand.test(code))
  return [...lines, ...inline]
    .map((line) => line.replace(/\s+#.*/, '').replaceAll(/\s+/g, ' ').trim())
    .filter((line) => line !== '')
}

// test/system/deploy/files.test.ts checks that the container suite runs these lines.
const runbookLines = Object.values(runbook).flat().flatMap((block) => commandsIn(`\`\`\`sh\n${block}\`\`\``))

/** The documented commands that other files run, by file. */
const runBy: Record<string, string[]> = {
  'test/system/container/fresh.sh': ['npm ci', 'npm ci && npm test', 'npm test'],
  'test/system/documents/starts.test.ts': ['npm ci && npm start', 'npm run dev'],
  'test/api-docs/openapi.test.ts': ['npm run openapi'],
  'test/system/deploy/release.test.ts': ['npm version 1.1.0', 'npm version 1.1.1-dev --no-git-tag-version'],
  '.github/workflows/ci.yml': ['npm run check', 'npm run test:system', 'npm run test:container',
    'npm run test:scale'],
  'test/system/faults/short.test.ts': ['npm run test:faults', 'npm run test:faults -- --seed 20261128',
    'npm run test:faults -- --only attacks'],
  'test/system/clients/browser-example.test.ts': [
    'python3 -m http.server 8080 --directory examples/browser', 'CORS_ORIGIN=http://localhost:8080 npm start'
  ],
  'test/system/container/compose.test.ts': [
    'docker compose up --detach --build', 'docker compose up --detach', 'docker compose down', 'docker stop',
    'docker compose exec plant-store plant-store token create alice',
    'docker compose exec plant-store plant-store token list'
  ],
  'test/system/container/image.test.ts': [
    'docker run --rm --env DATABASE_URL=… localhost/plant-store token list',
    'docker build --build-arg VERSION=1.1.1-dev.$(git rev-parse --short HEAD) .'
  ],
  'test/system/container/rolling.test.ts': [
    'export COMPOSE_FILE=docker-compose.yml:deploy/compose/rolling.yml',
    'docker compose build && docker compose up --detach', 'docker compose build',
    'docker compose exec plant-store-1 plant-store token create alice',
    'for i in plant-store-1 plant-store-2 plant-store-3; do', 'done'
  ]
}

/** The documented commands that no test runs, by reason. */
const notRun: Record<string, string[]> = {
  'It changes the checkout or the machine.':
    ['git pull', 'git push --follow-tags', 'npm install --global bun'],
  'It measures for minutes, or until it is stopped.': [
    'npm run bench', 'npm run bench -- --large', 'npm run bench -- --only \'\' --large',
    'npm run bench -- --seconds 2 --rounds 2 --only list,create',
    'BEFORE=../before npm run bench -- --only before',
    'node bench/scale.ts', 'node --cpu-prof src/main.ts serve'
  ],
  'It runs a suite that takes too long for CI, or a single test file.': [
    'npm run test:observability', 'npm run fuzz -- --count 20000',
    'npm test -- --disable-coverage test/plants/list.test.ts'
  ],
  'It draws pictures for people, or needs images from a registry.': [
    'node test/system/observability/draw.ts docs/dashboard.svg',
    'docker compose --file docker-compose.yml --file deploy/compose/observability.yml up --detach'
  ],
  'It needs the image of an earlier version.': [
    'PLANT_STORE_IMAGE=localhost/plant-store:1.0.0 docker compose up --detach --no-deps plant-store'
  ],
  'It needs a published release.': [
    'cosign verify --certificate-oidc-issuer=https://token.actions.githubusercontent.com ' +
      '--certificate-identity=https://github.com/<repository>/.github/workflows/release.yml' +
      '@refs/tags/v1.1.0 <image>'
  ],
  'It needs a cluster.': [
    'kubectl apply --filename deploy/kubernetes/production/namespace.yaml',
    'kubectl create secret generic plant-store-database --namespace plant-store ' +
      '--from-literal=url=postgres://… --from-literal=migration-url=postgres://…',
    'kubectl delete job plant-store-migration --namespace plant-store --ignore-not-found',
    'kubectl kustomize deploy/kubernetes/production | ' +
      'kubectl apply --selector app.kubernetes.io/component=migration --filename -',
    'kubectl wait job/plant-store-migration --namespace plant-store --for=condition=complete --timeout=15m',
    'kubectl apply --kustomize deploy/kubernetes/production'
  ],
  'It only prints logs.': [
    'docker compose logs plant-store | grep <id>', 'docker compose logs --tail 50 plant-store',
    'grep \'"error":50001\'', 'node test/support/sample-prose.ts --seed 1'
  ],
  'It only sets a value.': [
    'export UNTIL=\'2027-01-31 14:05:00+00\'', 'export BACKUP=backups/plants-20270131T140500Z.dump'
  ]
}

const elsewhere = new Set([...runbookLines, ...Object.values(runBy).flat(), ...Object.values(notRun).flat()])
const runHere = /^(plant-store|npx plant-store|curl localhost:3000)\b/

const inDocs = (await readdir(join(root, 'docs'), { recursive: true })).filter((name) => name.endsWith('.md'))
const documents = ['README.md', 'CONTRIBUTING.md', 'SECURITY.md', ...inDocs.map((name) => `docs/${name}`)]
const texts = await Promise.all(documents.map(read))
const commands = new Set(texts.flatMap(commandsIn))

t.test('a test runs every command line of the documents, or a reason is given', async (t) => {
  const unknown = [...commands].filter((command) => !runHere.test(command) && !elsewhere.has(command))
  t.strictSame(unknown, [])
  const gone = [...elsewhere].filter((command) => !commands.has(command))
  t.strictSame(gone, [], 'every command listed here appears in a document')
  for (const [file, lines] of Object.entries(runBy)) {
    const text = await read(file)
    // Skip TypeScript files: in them, a command may be an array of words.
    if (!file.endsWith('.ts')) for (const line of lines) t.ok(text.includes(line), line)
  }
})

t.test('every link of the documents leads to a file or a heading of the project', async (t) => {
  const headingsOf = (text: string) => [...text.matchAll(/^#+ (.*)/gm)]
    .map(([, heading = '']) => heading.toLowerCase().replaceAll(/[^\w\- ]/g, '').replaceAll(' ', '-'))
  const broken: string[] = []
  for (const [index, document] of documents.entries()) {
    for (const [, path = '', anchor] of texts[index]?.matchAll(/\]\((?!https?:)([^)#]*)#?([^)]*)\)/g) ?? []) {
      const target = path === '' ? document : join(dirname(document), path)
      const exists = anchor
        ? read(target).then((text) => headingsOf(text).includes(anchor))
        : access(join(root, target)).then(() => true)
      if (!await exists.catch(() => false)) broken.push(`${document}: ${path}#${anchor}`)
    }
  }
  t.strictSame(broken, [])
})

t.test('package.json has every npm script that the documents name', async (t) => {
  const named = texts.join().matchAll(/npm run ([\w:]+)/g)
  for (const [, script = ''] of named) t.ok(script in manifest.scripts, script)
})

t.test('the commands of the documents succeed', async (t) => {
  const { url, tokens, as, listen } = await startApp(t)
  await tokens.create({ user: 'bob', readOnly: false })
  const [bobs] = await tokens.list('bob')
  const carol = await as('carol')
  const address = await listen()
  // Commands in docs/data.md import these files.
  const folder = t.testdir({
    'plants.csv': 'id,name\n41,Fern\n',
    'everything.ndjson.gz': gzipSync('{"user":"dave","id":1,"name":"Oak"}\n')
  })
  const TOKEN = carol.authorization.replace('Bearer ', '')
  const env = { ...process.env, DATABASE_URL: url, TOKEN_CACHE_TTL: '0', TOKEN }
  const responses: string[] = []
  for (const command of commands) {
    if (!runHere.test(command)) continue
    const line = command.replace('<id>', bobs?.id as string).replace('<user>', 'bob')
      // Run the program without npx, because npx takes two seconds. Another test covers npx.
      .replace(/^(npx )?plant-store/, program.join(' '))
      .replace('localhost:3000', `--silent --show-error --fail ${address}`)
    const done = promisify(execFile)('env', [...asShipped, 'sh', '-c', line], { cwd: folder, env })
    await t.resolves(done, command)
    if (command.startsWith('curl')) responses.push((await done).stdout)
  }
  t.match(await tokens.list('alice'),
    [{ label: 'laptop' }, { label: 'dashboard', readOnly: true }, { expires: Date }])
  t.match(await tokens.list('bob'), [{ revoked: Date }])
  t.strictSame(responses, ['{"name":"Monstera"}', '[{"name":"Monstera"}]', ''])
})
