import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { attacks } from '../faults/attack-table.ts'
import { plantsFor, startAttack } from '../faults/attack-run.ts'
import { createClient } from '../faults/client.ts'
import { answers, buildImage, databaseUrl, image, openProject, run } from './support.ts'

t.setTimeout(180_000)

/** Of each attack. */
const lastsMs = 1500

await buildImage()

t.test('a container with 512 MiB survives all attacks in a row, and serves another caller after each', async t => {
  const project = await openProject(t)
  await project.compose('up', '--detach', 'database')
  await project.healthy('database')
  const container = await run('run', '--detach', `--network=${project.network}`,
    '--memory=512m', '--memory-swap=512m', `--env=DATABASE_URL=${databaseUrl}`, image)
  // Its own address: the proxy in front of a published port dies of a thousand connections.
  const address = await run('inspect', '--format={{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}', container)
  const url = `http://${address}:3000`
  await answers(`${url}/readyz`, 200)
  const newToken = (user: string) => run('exec', container, '/app/src/main.ts', 'token', 'create', user)
  const mallory = await newToken('mallory')
  const alice = createClient(url, await newToken('alice'))

  let id = 0
  // The other attacks need several users or a prepared database.
  for (const attack of attacks.filter(({ users, observed, setup, beside }) => !(users ?? observed ?? setup ?? beside))) {
    await project.sql("delete from plants where owner = 'mallory'")
    for (const statement of plantsFor(attack, ['mallory'])) await project.sql(statement)
    const attacker = await startAttack(t, attack, { address: url, metrics: '', tokens: [mallory], connections: attack.connections })
    await delay(lastsMs)
    attacker.kill()
    while ((await alice.create({ id: ++id, name: 'Monstera' })).status !== 200) await delay(100)
    const { status } = await alice.delete(id)
    t.equal(status, 204, `${attack.name}, ${attack.connections} connections`)
  }
  alice.close()
  const state = JSON.parse(await run('inspect', '--format={{json .State}}', container))
  t.match(state, { Running: true, OOMKilled: false })
  t.comment(await run('stats', '--no-stream', '--format={{.MemUsage}}', container))
})
