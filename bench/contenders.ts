// Defines the contenders: the programs that the benchmark measures.
import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, symlinkSync } from 'node:fs'
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
  env: { NODE_ENV: 'production' }
}

export const before = (checkout: string): Contender =>
  ({ ...service, name: 'before', title: 'the version before', command: [join(checkout, 'src/main.ts')] })

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

/** Builds the contenders. Skips those with tools that are not installed. */
export function contenders (): Contender[] {
  const all = [service, yardstick]
  for (const [name, build] of Object.entries({ go, rust, floor })) {
    try {
      all.push(build())
    } catch (error) {
      const { stderr, message } = error as Error & { stderr?: Buffer }
      console.log(`without ${name}: ${stderr ?? message}`)
    }
  }
  return all
}
