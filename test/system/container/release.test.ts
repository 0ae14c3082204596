// Installs a release from its archive, without a checkout. The archive's Compose files pull the image.
import { join } from 'node:path'
import t from 'tap'
import {
  buildImage, findImage, image, openNetwork, openProject, run, until, waitForStatus
} from './support.ts'

t.setTimeout(180_000)

t.test('the archive of a release pulls the image and serves', async (t) => {
  await buildImage()
  const { start } = await openNetwork(t)
  const server = await start('--publish=127.0.0.1::5000', await findImage('registry:3'))
  const registry = await run('port', server, '5000/tcp')
  await until(() => fetch(`http://${registry}/v2/`).then(({ ok }) => ok, () => false), (isUp) => isUp)
  const released = `${registry}/plant-store:1.1.0`
  await run('tag', image, released)
  t.teardown(() => run('rmi', released))
  await run('push', '--quiet', released)
  await run('rmi', released)

  const project = await openProject(t)
  const folder = t.testdir()
  const unpacked = join(folder, 'plant-store')
  const archive = `${folder}/plant-store.tar.gz`
  await project.sh(`release/bundle.sh ${released} ${archive} && tar -xzf ${archive} -C ${folder}`)
  const settings = { COMPOSE_FILE: 'docker-compose.yml', PLANT_STORE_IMAGE: '' }
  await project.sh('docker compose up --detach', settings, unpacked)
  const container = await project.container('plant-store')
  t.equal(await run('inspect', '--format={{.Config.Image}}', container), released)
  await waitForStatus(`${await project.url()}/readyz`, 200)
  const create = 'docker compose exec -T plant-store plant-store token create alice'
  const token = await project.sh(create, settings, unpacked)
  t.match(token, /^plant_\w+\n$/)
})
