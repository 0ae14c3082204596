// Defines the contenders: the programs that the benchmark measures.
import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, symlinkSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { folder, type Contender } from './running.ts'

export const found = (program: string) => spawnSync('which', [program]).status === 0

const here = import.meta.dirname
const peer = (file: string) => join(here, 'peers', file)

export const service: Contender = {
  name: 'service',
  title: 'this service',
  command: [join(here, '../src/main.ts')],
  ready: '/readyz',
  // The Docker image also sets both variables.
  env: { NODE_ENV: 'production', NODE_COMPILE_CACHE: join(folder, 'compile-cache') }
}

export const withSettings = (name: string, title: string, env: Record<string, string>): Contender =>
  ({ ...service, name, title, env: { ...service.env, ...env } })

export const perCore: Contender = {
  ...withSettings('per_core', `${service.title}, all cores`, { REUSE_PORT: 'on' }),
  processes: availableParallelism()
}

export const watched = (OTEL_EXPORTER_OTLP_ENDPOINT: string): Contender[] => [
  withSettings('metrics', 'with metrics', { METRICS_PORT: '0' }),
  withSettings('traced', 'with traces of one request in a hundred', {
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_TRACES_SAMPLER: 'traceidratio',
    OTEL_TRACES_SAMPLER_ARG: '0.01'
  }),
  withSettings('all_traced', 'with traces of all', { OTEL_EXPORTER_OTLP_ENDPOINT })
]

/** Returns the service of another checkout. Run `npm ci` in that checkout first. */
export const before = (checkout: string): Contender => ({
  ...service,
  name: 'before',
  title: 'the version before',
  command: [join(checkout, 'src/main.ts')]
})

export function fillCompileCache ({ command, env }: Contender) {
  // Five seconds after the start, SIGINT stops the service. Node then writes the compile cache.
  spawnSync('timeout', ['--signal=INT', '5', ...command], {
    env: { ...process.env, ...env, DATABASE_URL: 'postgres://127.0.0.1/none', PORT: '0' },
    stdio: 'ignore'
  })
}

export const yardstick: Contender =
  { name: 'fastify', title: 'Fastify + pg', command: [process.execPath, peer('fastify.ts')], ready: '/livez' }

// This contender needs the Debian packages golang and golang-github-jackc-pgx-v4-dev.
function go (): Contender {
  const binary = join(folder, 'plants')
  execFileSync('go', ['build', '-o', binary, peer('plants.go')], {
    env: { ...process.env, GO111MODULE: 'off', GOPATH: '/usr/share/gocode' },
    stdio: ['ignore', 'ignore', 'pipe']
  })
  return { name: 'go', title: 'Go + pgx', command: [binary], ready: '/livez' }
}

// This contender needs the Debian packages cargo and
// librust-{hyper,tokio-postgres,tokio,serde,serde-json,sha2,futures-util}-dev.
function rust (): Contender {
  const source = join(folder, 'rust')
  cpSync(peer('rust'), source, { recursive: true })
  const target = join(here, '../node_modules/.cache/bench-rust')
  execFileSync('cargo', ['build', '--release', '--offline', '--quiet', '--target-dir', target,
    '--config', 'source.crates-io.replace-with="debian"',
    '--config', 'source.debian.directory="/usr/share/cargo/registry"'
  ], { cwd: source, stdio: ['ignore', 'ignore', 'pipe'] })
  const command = [join(target, 'release/plants')]
  return { name: 'rust', title: 'Rust + tokio-postgres', command, ready: '/livez' }
}

/**
 * Returns a program that uses only Fastify and pg. The program is not in this repository: the variable FLOOR
 * names the program's folder.
 */
function floor (): Contender {
  const source = process.env.FLOOR
  if (source === undefined) throw new Error('FLOOR names no folder')
  const copy = join(folder, 'floor')
  cpSync(source, copy, { recursive: true })
  symlinkSync(join(here, '../node_modules'), join(copy, 'node_modules'))
  const command = [process.execPath, join(copy, 'main.mjs')]
  return { name: 'floor', title: 'libraries alone', command, ready: '/' }
}

export function contenders (): Contender[] {
  const all = [service, perCore, yardstick]
  for (const [name, get] of Object.entries({ go, rust, floor })) {
    try {
      all.push(get())
    } catch (error) {
      const { stderr, message } = error as Error & { stderr?: Buffer }
      console.log(`without ${name}: ${stderr ?? message}`)
    }
  }
  return all
}
