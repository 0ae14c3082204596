// Tests the service on Citus: a coordinator distributes the plants to two workers. The tests run only if
// CITUS_IMAGE names an image.
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { run } from '../container/support.ts'
import { createRandom } from '../faults/random.ts'
import { counted } from '../faults/storm.ts'
import { startWriters } from '../faults/writers.ts'
import { missing, startProject } from './support.ts'

const image = process.env.CITUS_IMAGE

for (const batch of ['1', '500']) {
  await t.test(`with WRITE_BATCH=${batch} plants distributed by owner survive the loss of a worker`, {
    skip: image === undefined ? 'CITUS_IMAGE names no image of Citus' : await missing(image)
  }, async (t) => {
    const project = await startProject(t, 'citus', { WRITE_BATCH: batch })
    const url = await project.databaseUrl('coordinator')
    const { acknowledged, ledger, stop } =
      await startWriters(url, project.addresses, createRandom(Date.now()))
    await acknowledged(500)
    const worker = await project.container('worker-one')
    await run('kill', worker)
    await delay(3000)
    await run('start', worker)
    await acknowledged(500)
    const breaches = await stop()
    t.comment(counted(ledger.counts))
    t.strictSame(breaches, [], 'an order of the requests explains every response')
  })
}
