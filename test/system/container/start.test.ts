import { readdir } from 'node:fs/promises'
import t from 'tap'
import {
  buildImage, buildNextImage, image, openProject, run, until, urlOf, waitForStatus
} from './support.ts'

t.setTimeout(180_000)

// An image with a further migration, which waits for the advisory lock 1.
const slow = 'localhost/plant-store:test-slow'

await buildImage()
await buildNextImage(slow, 'select pg_advisory_xact_lock(1); create table slow ();')
const project = await openProject(t)

const locks = (condition: string) =>
  project.sql(`select count(*) from pg_locks where locktype = 'advisory' and ${condition}`)

/** Takes the advisory lock 1. Returns a function that releases the lock. */
async function holdMigration () {
  const held = project.sql('select pg_advisory_lock(1), pg_sleep(600)').catch(() => {})
  await until(() => locks('granted'), count => count === '1')
  return async () => {
    await project.sql(`select pg_terminate_backend(pid) from pg_locks
      where locktype = 'advisory' and (classid, objid) = (0, 1) and granted`)
    await held
  }
}

await t.test('a service that starts before its database is live, not ready, and waits', async t => {
  await project.compose('up', '--detach', '--no-deps', 'plant-store')
  const url = await project.url()
  await waitForStatus(`${url}/livez`, 200)
  t.equal((await fetch(`${url}/readyz`)).status, 503)

  await project.compose('up', '--detach', 'database')
  await waitForStatus(`${url}/readyz`, 200)
  t.equal(await run('inspect', '--format={{.RestartCount}}', await project.container('plant-store')), '0')
})

await t.test('an instance is not ready before its migrations have run', async t => {
  const release = await holdMigration()
  const instance = await project.start(slow)
  const url = await urlOf(instance)
  await waitForStatus(`${url}/livez`, 200)
  await until(() => locks('not granted'), count => count === '1')
  t.equal((await fetch(`${url}/readyz`)).status, 503)
  await release()
  await waitForStatus(`${url}/readyz`, 200)
  t.equal(await project.sql('select count(*) from slow'), '0')
  await run('rm', '--force', instance)
})

await t.test('four concurrent starts on an empty database migrate it once, and all become ready', async t => {
  await project.compose('rm', '--force', '--stop', 'plant-store')
  await project.sql('drop database plant_store', 'postgres')
  await project.sql('create database plant_store owner plant_store', 'postgres')

  const release = await holdMigration()
  project.env.PLANT_STORE_IMAGE = slow
  await project.compose('up', '--detach', '--no-deps', '--scale', 'plant-store=4', 'plant-store')
  const instances = await project.containers('plant-store')
  t.equal(instances.length, 4)
  await until(() => locks('not granted'), count => count === '4')
  await release()
  for (const instance of instances) {
    await waitForStatus(`${await urlOf(instance)}/readyz`, 200)
    t.equal(await run('inspect', '--format={{.RestartCount}}', instance), '0')
  }
  const expected = (await readdir(new URL('../../../migrations/', import.meta.url))).length + 1
  const counts = await project.sql('select count(*), count(distinct name) from migrations')
  t.equal(counts, `${expected}|${expected}`)

  const log = await project.compose('logs', '--no-color', 'plant-store')
  t.equal(log.match(/"msg":"migrated"/g)?.length, 1)
  t.notMatch(log, /the database is not ready/, 'the other instances waited, and none failed')

  const authorization = `Bearer ${await project.token('alice')}`
  for (const instance of instances) {
    t.equal((await fetch(`${await urlOf(instance)}/plants`, { headers: { authorization } })).status, 200)
  }
})

await t.test('with MIGRATE=off a role that may not create tables is enough', async t => {
  await project.sql(`
    create role guest login password 'guest';
    grant connect on database plant_store to guest;
    grant select, insert, update, delete on plants, tokens to guest`)
  t.equal(await project.sql("select has_schema_privilege('guest', 'public', 'create')"), 'f')

  const DATABASE_URL = 'postgres://guest:guest@database/plant_store'
  const guest = await project.start(image, { DATABASE_URL, MIGRATE: 'off' })
  const url = await urlOf(guest)
  await waitForStatus(`${url}/readyz`, 200)

  const token = await run('exec', guest, 'plant-store', 'token', 'create', 'carol')
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
  const body = '{"id": 1, "name": "Fern"}'
  t.equal((await fetch(`${url}/plants`, { method: 'POST', headers, body })).status, 200)
  t.strictSame(await (await fetch(`${url}/plants`, { headers })).json(), [{ name: 'Fern' }])
  const { authorization } = headers
  t.equal((await fetch(`${url}/plants/1`, { method: 'DELETE', headers: { authorization } })).status, 204)
})
