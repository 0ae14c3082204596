// Runs the pods of the Kubernetes Job and Deployment with Podman, without a cluster. The tests call the
// probes, because Podman does not.
import { execFile } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { join, relative } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { buildImage, image, root, until, waitForStatus } from '../container/support.ts'
import { createClient } from '../faults/client.ts'
import { freePort } from '../../support/free-port.ts'

t.setTimeout(300_000)

const execute = promisify(execFile)
// The tests need Podman 4.3, because other versions read secrets differently.
const version = /\b4\.3\./
const secret = 'plant-store-database'
const pods = {
  database: 'plant-store-test-database',
  migration: 'plant-store-test-migration',
  service: 'plant-store-test-pod-0'
}
const skip = await whatIsMissing()
if (skip) t.comment(`KUBERNETES IS NOT TESTED: ${skip}`)

async function whatIsMissing (): Promise<string | false> {
  try {
    await execute('kubectl', ['kustomize', '--help'])
    const { stdout } = await execute('podman', ['--version'])
    return version.test(stdout) ? false : `the test needs Podman 4.3, and this is ${stdout.trim()}`
  } catch (error) {
    return (error as Error).message
  }
}

t.test('the pods of the manifests migrate, serve within their limits, and stop', { skip }, async (t) => {
  const folder = t.testdir({ 'containers.conf': '[containers]\ndefault_ulimits = []\n' })
  const env = { ...process.env, CONTAINERS_CONF: join(folder, 'containers.conf') }
  const run = async (command: string, ...args: string[]) =>
    (await execute(command, args, { cwd: folder, env, maxBuffer: 2 ** 24 })).stdout.trim()
  const podman = (...args: string[]) => run('podman', ...args)

  async function play (object: string): Promise<void> {
    await writeFile(join(folder, 'object.yaml'), object)
    await podman('kube', 'play', 'object.yaml')
  }

  async function addressOf (container: string): Promise<string> {
    const pod = await podman('inspect', '--format={{.Pod}}', container)
    const infra = await podman('pod', 'inspect', '--format={{.InfraContainerID}}', pod)
    return podman('inspect', '--format={{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}', infra)
  }

  // Remove pods and secrets that an earlier, killed test has left.
  await remove()
  t.teardown(remove)
  await buildImage()
  const loaded = await run('sh', '-c', `docker save ${image} postgres:18 | podman load`)
  const [loadedImage, loadedPostgres] = [...loaded.matchAll(/(\S+\/(?:plant-store|postgres):\w+)/g)]
    .map(([name]) => name).sort((a, b) => a < b ? -1 : 1)

  await play(podOf(pods.database, `
  containers:
    - name: postgres
      image: ${loadedPostgres}
      env: [{ name: POSTGRES_PASSWORD, value: plants }]`))
  const database = `${pods.database}-postgres`
  // Connect over TCP, to reach only the final server. While the image initializes the database, a temporary
  // server listens on a Unix socket.
  const sql = (text: string) =>
    podman('exec', database, 'psql', '--host=127.0.0.1', '--username=postgres', `--command=${text}`)
  const createRole = () => sql("create role plant_store login password 'plants'").catch(() => '')
  await until(createRole, (output) => output !== '')
  await sql('create database plant_store owner plant_store')

  const address = await addressOf(database)
  const url = Buffer.from(`postgres://plant_store:plants@${address}/plant_store`).toString('base64')
  await writeFile(join(folder, 'secret.json'), JSON.stringify({ url, 'migration-url': url }))
  await podman('secret', 'create', secret, 'secret.json')

  // Podman publishes the ports of the manifest on this machine, so choose free ports.
  await writeFile(join(folder, 'kustomization.yaml'), `
    nameSuffix: -test
    resources: [${relative(folder, join(root, 'deploy/kubernetes/production'))}]
    images: [{ name: registry.example.com/plant-store, newName: ${loadedImage?.split(':')[0]}, newTag: test }]
    patches:
      - target: { kind: Deployment }
        patch: |
          - { op: add, path: /spec/template/spec/containers/0/ports/0/hostPort, value: ${await freePort()} }
          - { op: add, path: /spec/template/spec/containers/0/ports/1/hostPort, value: ${await freePort()} }`)
  const objects = (await run('kubectl', 'kustomize', folder)).split(/^---\n/m)
  const find = (kind: string) => objects.find((object) => object.includes(`\nkind: ${kind}\n`)) as string

  await t.test('the Job migrates the database', async (t) => {
    const [, pod = ''] = /^ {4}spec:\n((?: {6}.*\n)+)/m.exec(find('Job')) ?? []
    await play(podOf(pods.migration, `\n${pod.replaceAll(/^ {4}/gm, '')}`))
    const container = `${pods.migration}-migration`
    t.equal(await podman('wait', container), '0')
    t.match(await podman('logs', container), /^up 0001_plants$/m)
  })

  await play(find('Deployment'))
  const service = `${pods.service}-plant-store`
  const base = `http://${await addressOf(service)}:3000`

  await t.test('the Deployment serves requests and responds to its probes', async (t) => {
    const probes = find('Deployment').matchAll(/path: (\/\w+z)$/gm)
    for (const [, path] of probes) await waitForStatus(`${base}${path}`, 200)
    await waitForStatus(base.replace('3000', '9464') + '/metrics', 200)
    const token = await podman('exec', service, 'plant-store', 'token', 'create', 'alice')
    const client = createClient(base, token)
    t.match(await client.create({ id: 1, name: 'Fern' }), { status: 200 })
    t.match(await client.list(), { status: 200, body: '[{"name":"Fern"}]' })
    t.match(await client.delete(1), { status: 204 })
    client.close()
  })

  await t.test('the container cannot write files and has no capabilities', async (t) => {
    await t.rejects(podman('exec', service, 'touch', '/tmp/file'), /Read-only file system/)
    const status = await podman('exec', service, 'cat', '/proc/1/status')
    t.match(status, /^Uid:\t1000\t[^]*^CapBnd:\t0+$[^]*^NoNewPrivs:\t1$[^]*^Seccomp:\t2$/m)
  })

  await t.test('the service is live and not ready while the database is frozen', async () => {
    await podman('pause', database)
    await waitForStatus(`${base}/readyz`, 503)
    await waitForStatus(`${base}/livez`, 200)
    await podman('unpause', database)
    await waitForStatus(`${base}/readyz`, 200)
  })

  await t.test('the service ends by itself within the grace period', async (t) => {
    const [, grace] = /terminationGracePeriodSeconds: (\d+)/.exec(find('Deployment')) ?? []
    const stopped = podman('stop', '--time', grace as string, service)
    t.match(await (await waitForStatus(`${base}/readyz`, 503))?.json(), { error: 50303 })
    await stopped
    t.equal(await podman('inspect', '--format={{.State.ExitCode}}', service), '0')
  })
})

async function remove (): Promise<void> {
  await execute('podman', ['pod', 'rm', '--force', '--ignore', '--time=0', ...Object.values(pods)])
  await execute('podman', ['secret', 'rm', secret]).catch(() => {})
}

const podOf = (name: string, spec: string) =>
  `apiVersion: v1\nkind: Pod\nmetadata: { name: ${name} }\nspec:${spec}\n`
