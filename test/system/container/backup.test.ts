// Backs up, recovers and restores with the commands of docs/runbook.md. The scale suite recovers more often.
import { readdir, readFile, rename, truncate, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { openBackups } from './operator.ts'
import { until } from './support.ts'

const { project, folder, follow, plants, keep, ready, now, recover } = await openBackups(t)
const idOf = (user: string) => project.sql(`select id from tokens where username = '${user}'`)
/** Returns the status of a list with the token. */
const status = async (token: string) =>
  (await fetch(`${await project.url()}/plants`, { headers: { authorization: `Bearer ${token}` } })).status

await t.test('after a recovery to a moment, revoked tokens and erased users stay so', async (t) => {
  const tokens: string[] = []
  for (const user of ['alice', 'bob', 'dave']) tokens.push(await project.token(user))
  await project.sql("insert into plants (owner, id, name) values ('dave', 9, 'Weed')")
  await keep(1, 'Fern')
  const moment = await now()
  await keep(2, 'Mistake')
  await project.inside('plant-store', 'plant-store', 'token', 'revoke', await idOf('bob'))
  await project.inside('plant-store', 'plant-store', 'user', 'erase', 'dave', '--yes')
  await writeFile(join(folder, 'erased.txt'), 'dave\n')
  await follow('Save the revocations')

  await recover(moment)
  t.equal(await plants(), 'Fern,Weed', 'the erased user is back')
  await follow('Revoke and erase again')
  await ready()
  t.equal(await plants(), 'Fern')
  t.strictSame(await Promise.all(tokens.map(status)), [200, 401, 401])
})

await t.test('a dump is restored into a running service, completely or not at all', async (t) => {
  await follow('Back up', {}, 2)
  const BACKUP = join(folder, (await readdir(folder)).find((name) => name.endsWith('.dump')) as string)
  const before = await plants()
  const whole = await readFile(BACKUP)
  await truncate(BACKUP, whole.length - 20)
  await keep(10, 'Bay')
  await t.rejects(follow('Restore a dump', { BACKUP }))
  t.equal(await plants(), `${before},Bay`)
  await writeFile(BACKUP, whole)
  await follow('Restore a dump', { BACKUP })
  t.equal(await plants(), before)

  const token = await project.token('alice')
  await follow('Revoke all tokens')
  await until(() => status(token), (code) => code === 401)
  const list = join(folder, 'revoked.txt')
  await rename(list, `${list}.saved`)
  await t.rejects(follow('Revoke and erase again'), /revoked\.txt/)
  await rename(`${list}.saved`, list)
})
