// Reads facts about processes from Linux's /proc.
import type { ChildProcess } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { readdir, readFile, readlink } from 'node:fs/promises'
import { setTimeout } from 'node:timers/promises'

/** Also recognizes a process that a signal has ended: its `exitCode` stays null. */
export const hasEnded = ({ exitCode, signalCode }: ChildProcess) => (exitCode ?? signalCode) !== null

export async function findChildren (pid: number | undefined): Promise<number[]> {
  const listed = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8')
  return listed.split(' ').filter(Boolean).map(Number)
}

/** Returns the resident memory of a process: the current value (VmRSS) or the peak (VmHWM). */
export const memoryMiB = (pid: number, field: 'VmRSS' | 'VmHWM' = 'VmRSS') =>
  Number(new RegExp(`${field}:\\s+(\\d+)`).exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024

/** Returns the processor time of all current threads of a process. */
export function processorMs (pid: number): number {
  const threads = `/proc/${pid}/task`
  const nanoseconds = readdirSync(threads).map((thread) =>
    Number(readFileSync(`${threads}/${thread}/schedstat`, 'utf8').split(' ')[0]))
  return nanoseconds.reduce((sum, each) => sum + each, 0) / 1e6
}

/**
 * Waits up to 10 s until no process uses `folder`. Then kills the processes that still use the folder, and
 * returns their command lines.
 */
export async function endLeftovers (folder: string): Promise<string[]> {
  const giveUp = Date.now() + 10_000
  let left
  while ((left = await findMarked(folder)).length > 0 && Date.now() < giveUp) await setTimeout(100)
  for (const { pid } of left) {
    try {
      process.kill(pid, 'SIGKILL')
    } catch {
      // The process has already ended.
    }
  }
  return left.map(({ pid, command }) => `${pid} ${command}`)
}

async function findMarked (folder: string): Promise<Array<{ pid: number, command: string }>> {
  const pids = (await readdir('/proc').catch(() => [])).map(Number).filter(Boolean)
  const looked = pids.map(async (pid) => {
    // Ignore a process that has ended or belongs to another user.
    const [environment, place, command] = await Promise.all([
      readFile(`/proc/${pid}/environ`, 'utf8'), readlink(`/proc/${pid}/cwd`),
      readFile(`/proc/${pid}/cmdline`, 'utf8')
    ]).catch(() => ['', '', ''])
    // PostgreSQL overwrites its environment, so only the working directory identifies PostgreSQL.
    const isMarked = environment.includes(`=${folder}`) || place.startsWith(folder)
    return isMarked ? [{ pid, command: command.replaceAll('\0', ' ').trim() }] : []
  })
  return (await Promise.all(looked)).flat()
}
