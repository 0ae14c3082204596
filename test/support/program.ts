import { spawn, type SpawnOptions } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Test } from 'tap'

const root = join(import.meta.dirname, '../..')
export const program = [join(root, 'src/main.ts')]

/** A test, or a run of test/system/faults/. */
export type Scope = Pick<Test, 'teardown'>

type Environment = Record<string, string | undefined>

/** Returns functions that start the program with this command line. */
export function startedBy (commandLine: string[]) {
  const [file = '', ...words] = commandLine

  function start (args: string[], environment: Environment = {}) {
    const child = spawn(file, [...words, ...args], { env: { ...process.env, ...environment } })
    let [stdout, stderr] = ['', '']
    child.stdout.on('data', (chunk) => { stdout += chunk })
    child.stderr.on('data', (chunk) => { stderr += chunk })
    const ended = once(child, 'close').then(([code]) => ({ code: code as number | null, stdout, stderr }))
    return { child, ended }
  }

  const run = (args: string[], environment?: Environment) => start(args, environment).ended

  /** Starts `serve` on a free port and waits until it logs `until`. Kills the process when the scope ends. */
  async function serve (
    scope: Scope, environment: Environment, until = 'ready', { detached = false }: SpawnOptions = {}
  ) {
    const env = { ...process.env, PORT: '0', ...environment }
    const child = spawn(file, [...words, 'serve'], { detached, env })
    scope.teardown(() => { child.kill('SIGKILL') })
    const log: Array<Record<string, unknown>> = []
    let stderr = ''
    child.stderr.on('data', (chunk) => { stderr += chunk })
    // 'exit' may come before the last lines of the log, but 'close' comes after them.
    const exited = once(child, 'close') as Promise<[number | null, NodeJS.Signals | null]>

    /** Returns the first log line, past or future, with a message that starts with `text`. */
    async function logged (text: string): Promise<Record<string, unknown>> {
      for (let index = 0; ; index++) {
        if (index === log.length) await Promise.race([once(lines, 'line'), exited])
        const line = log[index]
        if (line === undefined) throw new Error(`exited with ${child.exitCode} before "${text}": ${stderr}`)
        if (String(line.msg).startsWith(text)) return line
      }
    }

    const lines = createInterface(child.stdout)
    lines.on('line', (line) => { log.push(JSON.parse(line)) })
    const address = String((await logged('listening')).msg).replace('listening on ', '')
    await logged(until)
    return { child, address, log, logged, exited, stderr: () => stderr }
  }

  return { start, run, serve }
}

export const { start, serve } = startedBy(program)

/** Arguments for `env` that turn coverage off. Without coverage the program starts in half the time. */
export const withoutHooks = ['-u', 'NODE_OPTIONS']

/**
 * Arguments for `env` that turn coverage off and a compile cache on. The image uses such a cache, too. With
 * coverage the cache would be wrong, because V8 does not report every line of cached functions.
 */
export const asShipped = [...withoutHooks, `NODE_COMPILE_CACHE=${join(root, 'node_modules/.cache/node')}`]

/** These functions start the program without measuring coverage. */
export const unmeasured = startedBy(['env', ...asShipped, ...program])

export type Program = Awaited<ReturnType<typeof serve>>
