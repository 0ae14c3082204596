import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { attacks } from '../faults/attack-table.ts'
import { plantsFor, startAttack } from '../faults/attack-run.ts'
import { createClient } from '../faults/client.ts'
import { buildImage, databaseUrl, image, openProject, run, waitForStatus } from './support.ts'

t.setTimeout(180_000)

const attackMs = 1500

await buildImage()

t.test('a container with 512 MiB survives each attack, and then serves another user', async t => {
  const project = await openProject(t)
  await project.compose('up', '--detach', 'database')
  await project.healthy('database')
  const container = await run('run', '--detach', `--network=${project.network}`,
    '--memory=512m', '--memory-swap=512m', `--env=DATABASE_URL=${databaseUrl}`, image)
  // Use the container's own address. At a thousand connections, Docker's proxy for published ports fails.
  const format = '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}'
  const address = await run('inspect', `--format=${format}`, container)
  const url = `http://${address}:3000`
  await waitForStatus(`${url}/readyz`, 200)
  const newToken = (user: string) => run('exec', container, '/app/src/main.ts', 'token', 'create', user)
  const mallory = await newToken('mallory')
  const alice = createClient(url, await newToken('alice'))

  let id = 0
  // Skip attacks that need several users, metrics, or more SQL than `plantsFor` returns.
  const simple = attacks.filter(({ users, observed, setup, beside }) =>
    !(users ?? observed ?? setup ?? beside))
  for (const attack of simple) {
    await project.sql("delete from plants where owner = 'mallory'")
    for (const statement of plantsFor(attack, ['mallory'])) await project.sql(statement)
    const { connections } = attack
    const options = { address: url, metrics: '', tokens: [mallory], connections }
    const attacker = await startAttack(t, attack, options)
    await delay(attackMs)
    attacker.kill()
    while ((await alice.create({ id: ++id, name: 'Monstera' })).status !== 200) await delay(100)
    const { status } = await alice.delete(id)
    t.equal(status, 204, `${attack.name}, ${connections} connections`)
  }
  alice.close()
  const state = JSON.parse(await run('inspect', '--format={{json .State}}', container))
  t.match(state, { Running: true, OOMKilled: false })
  t.comment(await run('stats', '--no-stream', '--format={{.MemUsage}}', container))
})
