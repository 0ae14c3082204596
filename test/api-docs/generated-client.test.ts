import { execFile } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { startApp } from '../support/app.ts'
import { exactIntegers, generateClient } from '../support/generated-client.ts'
import { withoutHooks } from '../support/program.ts'

const { folder, operations, createClient } = await generateClient(t, await readFile('openapi.json', 'utf8'))
const { createPlant, listPlants, deletePlant } = operations

async function connect (t: Test, options = {}) {
  const { as, listen } = await startApp(t)
  const auth = (await as('alice')).authorization.replace('Bearer ', '')
  return createClient({ baseUrl: await listen(), auth, ...options })
}

// As JavaScript numbers, these two neighbors are the same.
const [id, neighbour] = [9007199254740992n, 9007199254740993n]

t.test('a client generated from the document creates, lists and deletes', async (t) => {
  const client = await connect(t, { bodySerializer: exactIntegers })

  for (const body of [{ id, name: 'Monstera', tag: 'tropical' }, { id: neighbour, name: 'Fern' }]) {
    const { data, response } = await createPlant({ client, body })
    t.equal(response.status, 200)
    t.same({ id: body.id, ...data }, body)
  }
  t.same((await listPlants({ client })).data, [{ name: 'Monstera', tag: 'tropical' }, { name: 'Fern' }])
  t.same((await listPlants({ client, query: { limit: 1 } })).data, [{ name: 'Monstera', tag: 'tropical' }])

  t.equal((await deletePlant({ client, path: { id: neighbour } })).response.status, 204)
  t.same((await listPlants({ client })).data, [{ name: 'Monstera', tag: 'tropical' }])
  t.match((await deletePlant({ client, path: { id: neighbour } })).error, { error: 40402 })
})

t.test('a bigint that the generator sends as text is rejected', async (t) => {
  const client = await connect(t)
  const { error } = await createPlant({ client, body: { id, name: 'Monstera' } })
  t.match(error, { error: 40012, message: /^id must be an integer/ })
})

t.test('the generated types have the names of the document, and require a bigint for an id', async (t) => {
  await writeFile(join(folder, 'use.ts'), `
    import { createPlant, deletePlant, type Error, type NewPlant, type Plant } from './client/index.ts'

    const created = await createPlant({ body: { id: 9007199254740993n, name: 'Fern' } satisfies NewPlant })
    export const name: string | undefined = (created.data satisfies Plant | undefined)?.name
    export const number: number | undefined = (created.error satisfies Error | undefined)?.error
    // @ts-expect-error
    await createPlant({ body: { id: 9007199254740993, name: 'Fern' } })
    // @ts-expect-error
    await createPlant({ body: { id: 1n } })
    // @ts-expect-error
    await deletePlant({ path: { id: '1' } })
  `)
  const options = [
    '--ignoreConfig', '--noEmit', '--strict', '--target', 'es2024', '--module', 'nodenext',
    '--allowImportingTsExtensions', '--skipLibCheck'
  ]
  const check = promisify(execFile)('env', [...withoutHooks, 'tsc', ...options, join(folder, 'use.ts')])
  await t.resolves(check.catch(({ stdout }) => { throw new Error(stdout) }))
})
