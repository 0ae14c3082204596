import { spawn, type SpawnOptions } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Test } from 'tap'

const main = join(import.meta.dirname, '../../src/main.ts')
// Not where coverage is measured: of functions that come from it V8 doesn't tell every line.
const compileCache = join(import.meta.dirname, '../../node_modules/.cache/node')

/** Whatever ends what was started in it: a test, or a run of the fault suite. */
export type Scope = Pick<Test, 'teardown'>

type Environment = Record<string, string | undefined>

/** The ways to start the program, with what stands before it: itself it names the options that Node needs. */
export function startedBy (...before: string[]) {
  const [file = main, ...words] = [...before, main]

  /** Starts a command of the program. */
  function start (args: string[], environment: Environment = {}) {
    const child = spawn(file, [...words, ...args], { env: { ...process.env, ...environment } })
    let [stdout, stderr] = ['', '']
    child.stdout.on('data', (chunk) => { stdout += chunk })
    child.stderr.on('data', (chunk) => { stderr += chunk })
    const ended = once(child, 'close').then(([code]) => ({ code: code as number | null, stdout, stderr }))
    return { child, ended }
  }

  /** Runs a command of the program to its end. */
  const run = (args: string[], environment?: Environment) => start(args, environment).ended

  /** Starts `serve` as a process on a free port; resolves once it logs `until`. Killed when the scope ends. */
  async function serve (scope: Scope, environment: Environment, until = 'ready', { detached = false }: SpawnOptions = {}) {
    const child = spawn(file, [...words, 'serve'], { detached, env: { ...process.env, PORT: '0', ...environment } })
    scope.teardown(() => { child.kill('SIGKILL') })
    const log: Array<Record<string, unknown>> = []
    let stderr = ''
    child.stderr.on('data', (chunk) => { stderr += chunk })
    const exited = once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>

    /** The first line, past or to come, whose message starts with the text. */
    function logged (text: string): Promise<Record<string, unknown>> {
      const matches = (line: Record<string, unknown>) => String(line.msg).startsWith(text)
      const past = log.find(matches)
      if (past !== undefined) return Promise.resolve(past)
      return new Promise((resolve, reject) => {
        lines.on('line', () => {
          const line = log.at(-1)
          if (line !== undefined && matches(line)) resolve(line)
        })
        exited.then(([code]) => reject(new Error(`exited with ${code} before logging "${text}": ${stderr}`)))
      })
    }

    const lines = createInterface(child.stdout)
    lines.on('line', (line) => { log.push(JSON.parse(line)) })
    const address = String((await logged('listening')).msg).replace('listening on ', '')
    await logged(until)
    return { child, address, log, logged, exited, stderr: () => stderr }
  }

  return { start, run, serve }
}

export const { start, run, serve } = startedBy()

/** For `env` to start others' programs with: they take twice the time when their coverage is measured, too. */
export const withoutHooks = ['-u', 'NODE_OPTIONS']

/** As it is shipped, in half the time: for `env` to start the program with where its lines are run elsewhere. */
export const asShipped = [...withoutHooks, `NODE_COMPILE_CACHE=${compileCache}`]

/** Without the hooks by which tap measures coverage in every process it knows of. */
export const unmeasured = startedBy('env', ...asShipped)

export type Program = Awaited<ReturnType<typeof serve>>
