import { execFile } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { promisify } from 'node:util'
import { join } from 'node:path'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { asShipped } from '../support/program.ts'

const run = promisify(execFile)
const { app, as, listen } = await startApp(t)
const alice = await as('alice')
const env = { ...process.env, BASE: await listen(), TOKEN: alice.authorization.replace('Bearer ', '') }
const { info, paths } = (await app.inject('/openapi.json')).json()

/** The code of a section of the page, one block after the other. */
const codeOf = (section: string, language: string): string[] =>
  [...info.description.split(`## ${section}\n`)[1].split('\n## ')[0].matchAll(new RegExp(`\`\`\`${language}\n(.*?)\`\`\``, 'gs'))].map(([, code]) => code)

const [sh = '', python = '', ts = ''] = ['sh', 'python', 'ts'].map((language) => codeOf('Quick start', language).join(''))
// Beside the packages that it imports.
const script = async (code: string) => {
  const file = join(import.meta.dirname, `quick-start-${process.pid}.mts`)
  t.teardown(() => import('node:fs/promises').then(({ rm }) => rm(file, { force: true })))
  await writeFile(file, code)
  return run('env', [...asShipped, process.execPath, file], { env })
}

t.afterEach(async () => { for (const id of ['42', '9007199254740993']) await alice.delete(id) })

t.test('the lines for a shell', async (t) => {
  t.equal((await run('sh', ['-c', sh], { env })).stdout, '{"name":"Fern"}[{"name":"Fern"}]')
})

t.test('the lines beside the operations', async (t) => {
  const { '/plants': { post, get }, '/plants/{id}': { delete: remove } } = paths
  const lines = [post, get, remove].map(({ description }) => /```sh\n(.*)\n```/s.exec(description)?.[1]).join('\n')
  const plant = '{"name":"Monstera deliciosa","tag":"tropical"}'
  t.equal((await run('sh', ['-c', lines], { env })).stdout, `${plant}[${plant}]`)
})

const hasPython = await run('python3', ['--version']).then(() => true, () => false)
t.test('the lines for Python', { skip: !hasPython && 'no python3' }, async (t) => {
  t.equal((await run('python3', ['-c', python], { env })).stdout, '{"name":"Fern"} [{"name":"Fern"}] \n')
})

t.test('the lines for TypeScript', async (t) => {
  t.equal((await script(ts)).stdout, "{ name: 'Fern' }\n[ { name: 'Fern' } ] 204\n")
})

t.test('the lines that make openapi-fetch exact', async (t) => {
  const [lines = ''] = codeOf('Ids', 'ts')
  const [created = '', deleted = ''] = lines.split('await client.DELETE')
  await script(created)
  t.equal((await alice.delete('9007199254740992')).statusCode, 404)
  t.same((await alice.list()).json(), [{ name: 'Fern' }])
  await script(`${created.replace(/await client.POST.*\n/, '')}await client.DELETE${deleted}`)
  t.same((await alice.list()).json(), [])
})

t.test('the rule for repeating', async (t) => {
  const [rule = ''] = codeOf('Errors', 'ts')
  const call = ts.split('console.log')[0]
  await script(`${call}${rule}await createForSure({ id: 42, name: 'Fern' })`)
  t.same((await alice.list()).json(), [{ name: 'Fern' }])
  await t.rejects(script(`${call}${rule}await createForSure({ id: 42, name: 'Ivy' })`), /You already have a plant with this id/)
  // A first answer that never arrived.
  const cut = 'let calls = 0; const real = fetch; globalThis.fetch = async (...args) => { const answer = await real(...args); if (calls++ === 0) throw new Error(); return answer }\n'
  await alice.delete('42')
  await script(`${cut}${call}${rule}await createForSure({ id: 42, name: 'Fern' })`)
  t.same((await alice.list()).json(), [{ name: 'Fern' }])
})
