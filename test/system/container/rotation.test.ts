// Rotates the database password. rolling.test.ts rotates the password under load.
import t from 'tap'
import pg from 'pg'
import { openOperator } from './operator.ts'
import { findImage, run, until, waitForStatus } from './support.ts'

const { project, follow, plants, keep } = await openOperator(t, 'rolling')
project.env.HAPROXY_IMAGE = await findImage('haproxy:3.4')
const ready = async () => waitForStatus(`${await project.url('proxy')}/readyz`, 200)

await project.compose('up', '--detach')
await ready()
await keep(1, 'Fern')

async function rotate (OLD_USER: string, NEW_USER: string, NEW_PASSWORD: string) {
  await follow('Rotate the database password', { NEW_USER, NEW_PASSWORD })
  Object.assign(project.env, { DATABASE_USER: NEW_USER, DATABASE_PASSWORD: NEW_PASSWORD })
  await follow('Rotate the database password', { OLD_USER, NEW_USER }, 1)
  await ready()
}

/** Resolves to the SQLSTATE of a login, or to undefined if it succeeds. */
async function logIn (user: string, password: string): Promise<string | undefined> {
  const { hostname } = new URL(await project.databaseUrl('database'))
  const client = new pg.Client({ host: hostname, user, password, database: 'plant_store' })
  return client.connect().then(() => client.end(), (error) => error.code)
}

await t.test('after a rotation, the tools work, and the old role is locked out', async (t) => {
  await rotate('plant_store', 'plant_store_2', 'p/a?s\'s"w#o\\rd')
  t.equal(await logIn('plant_store', 'plants'), '28000')
  const dump = await project.compose('run', '-T', '--rm', '--no-deps', 'tools', 'pg_dump')
  t.match(dump, /OWNER TO plant_store;/)
  t.equal(await plants(), 'Fern')
})

await t.test('after a second rotation, a restart of the database lets no locked role in', async (t) => {
  await rotate('plant_store_2', 'plant_store_3', 'third')
  await run('restart', await project.container('database'))
  await project.healthy('database')
  await until(() => logIn('plant_store_3', 'third'), (code) => code === undefined)
  t.equal(await logIn('plant_store_2', 'p/a?s\'s"w#o\\rd'), '28000')
})

await t.test('a rotation to a role that exists, and a login of the superuser, are rejected', async (t) => {
  const again = { NEW_USER: 'plant_store_2', NEW_PASSWORD: 'again' }
  await t.rejects(follow('Rotate the database password', again), /already exists/)
  await t.rejects(follow('Rotate the database password', { NEW_USER: 'plant_store_4' }), /NEW_PASSWORD/)
  const same = { OLD_USER: 'plant_store_3', NEW_USER: 'plant_store_3' }
  await t.rejects(follow('Rotate the database password', same, 1), { code: 1 })
  t.equal(await logIn('plant_store_3', 'third'), undefined)
  const check = project.compose('exec', '-T', '-e', 'DATABASE_USER=postgres', 'database', 'sh', '-c',
    'rm /tmp/has-password; sh /database-ready.sh')
  await t.rejects(check, /DATABASE_USER must not be the superuser/)
})
