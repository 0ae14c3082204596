// Loses a worker of deploy/compose/citus.yml while two instances write.
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { run } from '../container/support.ts'
import { counted } from '../faults/storm.ts'
import { startWriters } from '../faults/writers.ts'
import { missing, startProject } from './support.ts'

// A coordinator distributes the plants to two workers.
const citus = process.env.CITUS_IMAGE
for (const batch of ['1', '500']) {
  await t.test(`with WRITE_BATCH=${batch} plants distributed by Citus survive the loss of a worker`, {
    skip: citus === undefined ? 'CITUS_IMAGE names no image of Citus' : await missing(citus)
  }, async (t) => {
    const project = await startProject(t, ['citus'], { WRITE_BATCH: batch })
    const url = await project.databaseUrl('coordinator')
    const { acknowledged, ledger, stop } = await startWriters(url, project.addresses)
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
