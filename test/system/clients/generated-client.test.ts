// Tests clients that hey-api, orval and openapi-typescript generate from openapi.json.
import { execFile } from 'node:child_process'
import { readFile, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { startApp } from '../../support/app.ts'
import { exactIntegers, generateClient, rawJSON } from '../../support/generated-client.ts'
import { withoutHooks } from '../../support/program.ts'

const { folder, operations, createClient } = await generateClient(t, await readFile('openapi.json', 'utf8'))
const { createPlant, listPlants, deletePlant } = operations
const { as, listen } = await startApp(t)
const baseUrl = await listen()

const runInFolder = (command: string, ...args: string[]) =>
  promisify(execFile)('env', [...withoutHooks, command, ...args], { cwd: folder })
    .catch(({ stdout, stderr }) => { throw new Error(stdout + stderr) })

const orvalProject = (name: string, useBigInt: boolean) => ({
  input: './openapi.json',
  output: { target: `./${name}.ts`, client: 'fetch', baseUrl, override: { useBigInt } }
})
await symlink(join(import.meta.dirname, '../../../node_modules'), join(folder, 'node_modules'))
await writeFile(join(folder, 'orval.config.mjs'), `export default ${JSON.stringify({
  numbers: orvalProject('orval-numbers', false),
  bigints: orvalProject('orval-bigints', true)
})}`)
await Promise.all([
  runInFolder('orval'),
  runInFolder('openapi-typescript', 'openapi.json', '--output', 'openapi-typescript.ts')
])

// Maps a generator to a program that calls the generated client. `rejected` never runs: TypeScript must
// report an error for each call in `rejected`.
const uses: Record<string, string> = {
  'hey-api': `
    import { createPlant, deletePlant, listPlants, type Error, type NewPlant } from './client/index.ts'
    import { createClient } from './client/client/index.ts'

    export async function use (baseUrl: string, authorization: string) {
      const bodySerializer = (body: unknown) =>
        JSON.stringify(body, (_key, value) => typeof value === 'bigint' ? Number(value) : value)
      const client = createClient({ baseUrl, headers: { authorization }, bodySerializer })
      const created = await createPlant({ client, body: { id: 42n, name: 'Fern' } satisfies NewPlant })
      const listed = await listPlants({ client, query: { limit: 1 } })
      const deleted = await deletePlant({ client, path: { id: 42n } })
      const again = await deletePlant({ client, path: { id: 42n } })
      const error: Error | undefined = again.error
      return [created.data?.name, listed.data, deleted.response?.status, error?.error]
    }
    export const rejected = () => [
      // @ts-expect-error
      createPlant({ body: { id: 42, name: 'Fern' } }),
      // @ts-expect-error
      createPlant({ body: { id: 1n } }),
      // @ts-expect-error
      deletePlant({ path: { id: '1' } })
    ]`,
  orval: `
    import { createPlant, deletePlant, listPlants, type NewPlant } from './orval-numbers.ts'

    export async function use (_baseUrl: string, authorization: string) {
      const options = { headers: { authorization } }
      const created = await createPlant({ id: 42, name: 'Fern' } satisfies NewPlant, options)
      const listed = await listPlants({ limit: 1 }, options)
      const deleted = await deletePlant(42, options)
      const again = await deletePlant(42, options)
      return [
        created.status === 200 ? created.data.name : created.data.error,
        listed.data,
        deleted.status,
        again.status === 404 ? again.data.error : undefined
      ]
    }
    export const rejected = () => [
      // @ts-expect-error
      createPlant({ id: 42n, name: 'Fern' }),
      // @ts-expect-error
      createPlant({ id: 1 })
    ]`,
  'openapi-typescript with openapi-fetch': `
    import createClient from 'openapi-fetch'
    import type { components, paths } from './openapi-typescript.ts'

    export async function use (baseUrl: string, authorization: string) {
      const client = createClient<paths>({ baseUrl, headers: { authorization } })
      const body: components['schemas']['NewPlant'] = { id: 42, name: 'Fern' }
      const created = await client.POST('/plants', { body })
      const listed = await client.GET('/plants', { params: { query: { limit: 1 } } })
      const deleted = await client.DELETE('/plants/{id}', { params: { path: { id: 42 } } })
      const again = await client.DELETE('/plants/{id}', { params: { path: { id: 42 } } })
      return [created.data?.name, listed.data, deleted.response.status, again.error?.error]
    }
    export const rejected = (client: ReturnType<typeof createClient<paths>>) => [
      // @ts-expect-error
      client.POST('/plants', { body: { id: 42n, name: 'Fern' } }),
      // @ts-expect-error
      client.POST('/plants', { body: { id: 1 } })
    ]`
}
const fileOf = (generator: string) => join(folder, `use-${generator.replaceAll(' ', '-')}.ts`)
await Promise.all(Object.entries(uses).map(([generator, text]) => writeFile(fileOf(generator), text)))

for (const generator of Object.keys(uses)) {
  t.test(`a client generated by ${generator} creates, lists and deletes`, async (t) => {
    const { use } = await import(fileOf(generator))
    t.same(await use(baseUrl, (await as('alice')).authorization), ['Fern', [{ name: 'Fern' }], 204, 40402])
  })
}

t.test('all generated clients compile under strict rules', async (t) => {
  const options = [
    '--ignoreConfig', '--noEmit', '--strict', '--target', 'es2024', '--module', 'nodenext',
    '--allowImportingTsExtensions', '--skipLibCheck'
  ]
  await t.resolves(runInFolder('tsc', ...options, ...Object.keys(uses).map(fileOf), 'orval-bigints.ts'))
})

// As JavaScript numbers, these two ids would be equal.
const [id, neighbor] = [9007199254740992n, 9007199254740993n]

t.test('hey-api makes a bigint of an int64, which is exact with a serializer for bigint', async (t) => {
  const { authorization } = await as('bob')
  const client = createClient({ baseUrl, headers: { authorization }, bodySerializer: exactIntegers })
  for (const body of [{ id, name: 'Monstera', tag: 'tropical' }, { id: neighbor, name: 'Fern' }]) {
    const { data, response } = await createPlant({ client, body })
    t.equal(response.status, 200)
    t.same({ id: body.id, ...data }, body)
  }
  t.equal((await deletePlant({ client, path: { id: neighbor } })).response.status, 204)
  t.same((await listPlants({ client })).data, [{ name: 'Monstera', tag: 'tropical' }])
})

t.test('hey-api by itself sends a bigint as text, which the service rejects', async (t) => {
  const { authorization } = await as('carol')
  const client = createClient({ baseUrl, headers: { authorization } })
  const { error } = await createPlant({ client, body: { id, name: 'Monstera' } })
  t.match(error, { error: 40012, message: /^id must be an integer/ })
})

t.test('orval makes a number of an int64, or with useBigInt a bigint that needs a toJSON', async (t) => {
  const dave = await as('dave')
  const options = { headers: { authorization: dave.authorization } }
  const { createPlant, deletePlant } = await import(join(folder, 'orval-bigints.ts'))
  await t.rejects(createPlant({ id: neighbor, name: 'Fern' }, options), { message: /serialize a BigInt/ })

  Object.assign(BigInt.prototype, { toJSON (this: bigint) { return rawJSON(String(this)) } })
  t.teardown(() => Object.assign(BigInt.prototype, { toJSON: undefined }))
  t.equal((await createPlant({ id: neighbor, name: 'Fern' }, options)).status, 200)
  t.equal((await dave.delete(id)).statusCode, 404)
  t.equal((await deletePlant(neighbor, options)).status, 204)
})

t.test('openapi-typescript makes a number of an int64: the page has a sample for large ids', async (t) => {
  const types = await readFile(join(folder, 'openapi-typescript.ts'), 'utf8')
  t.match(types, /NewPlant: \{[^}]*\* Format: int64[^}]*?id: number;/)
  t.match(await readFile('src/api-docs/description.md', 'utf8'), /typeof value === 'bigint' \? JSON\.rawJSON/)
})
