// Upgrades the compose files of older versions under load, with the commands of docs/runbook.md.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import t from 'tap'
import { createRandom } from '../faults/random.ts'
import { counted } from '../faults/storm.ts'
import { startWriters } from '../faults/writers.ts'
import { runbook } from '../container/operator.ts'
import { buildImage, openProject, root, run } from '../container/support.ts'

const sh = (line: string) => promisify(execFile)('sh', ['-ec', line], { cwd: root })
await buildImage()

for (const [version, commit] of [['1.0.0', '0be22c5~1'], ['1.1.0', 'c3ff151']] as const) {
  const isThere = await sh(`git cat-file -e ${commit}`).then(() => true, () => false)
  await t.test(`version ${version} is upgraded under load`, {
    skip: !isThere && 'the checkout lacks the older commits'
  }, async (t) => {
    const folder = t.testdir()
    const project = await openProject(t)
    // Older versions have no POSTGRES_IMAGE.
    project.env.POSTGRES_IMAGE = 'postgres:18'
    project.env.COMPOSE_FILE = `${folder}/docker-compose.yml`
    await sh(`git archive ${commit} docker-compose.yml deploy | tar --extract --directory=${folder}`)
    await project.compose('up', '--detach', '--no-build')
    await project.ready()
    const url = await project.url()
    const { acknowledged, ledger, stop } =
      await startWriters(await project.databaseUrl('database'), [url], createRandom(Date.now()), 50)
    await acknowledged(100)

    await sh(`cp -R docker-compose.yml deploy ${folder}`)
    await run('restart', await project.container('database'))
    await project.healthy('database')
    await acknowledged(100)

    project.env.PORT = new URL(url).host
    const [, recreate = ''] = (runbook.Upgrade?.[1] as string).trim().split('\n')
    await project.sh(recreate, {}, folder)
    await project.healthy('database')
    await acknowledged(100)
    const breaches = await stop(await project.databaseUrl('database'))
    t.comment(counted(ledger.counts))
    t.strictSame(breaches, [], 'an order of the requests explains every response')
  })
}
