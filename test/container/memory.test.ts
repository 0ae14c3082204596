import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { all, beginAttack, plantsFor } from '../faults/attacks.ts'
import { createCaller } from '../faults/caller.ts'
import { answers, buildImage, databaseUrl, image, openProject, run, urlOf } from './support.ts'

t.setTimeout(180_000)

/** Of each attack. */
const lastsMs = 1500

await buildImage()

t.test('a container with 512 MiB survives all attacks in a row, and another caller notices none', async t => {
  const project = await openProject(t)
  await project.compose('up', '--detach', 'database')
  await project.healthy('database')
  const container = await run('run', '--detach', `--network=${project.network}`, '--publish=127.0.0.1::3000',
    '--memory=512m', '--memory-swap=512m', `--env=DATABASE_URL=${databaseUrl}`, image)
  const url = await urlOf(container)
  await answers(`${url}/readyz`, 200)
  const newToken = (user: string) => run('exec', container, '/app/src/main.ts', 'token', 'create', user)
  const mallory = await newToken('mallory')
  const alice = createCaller(url, await newToken('alice'))

  for (const attack of all) {
    await project.sql("delete from plants where owner = 'mallory'")
    for (const statement of plantsFor(attack, 'mallory')) await project.sql(statement)
    const attacker = await beginAttack(t, attack, url, mallory)
    const seen = []
    for (const end = performance.now() + lastsMs; performance.now() < end;) {
      seen.push(await alice.create({ id: 1, name: 'Monstera' }), await alice.list(), await alice.delete(1))
      await delay(25)
    }
    attacker.kill()
    const odd = seen.filter(({ status }) => status !== 200 && status !== 204)
    t.strictSame(odd, [], `${attack.kind}, ${attack.connections} connections`)
  }
  alice.close()
  const state = JSON.parse(await run('inspect', '--format={{json .State}}', container))
  t.match(state, { Running: true, OOMKilled: false })
  t.comment(await run('stats', '--no-stream', '--format={{.MemUsage}}', container))
})
