import { execFileSync } from 'node:child_process'

/** What a process has of the machine's memory. */
export const memoryMiB = (pid: number): number =>
  Number(execFileSync('ps', ['-o', 'rss=', '-p', String(pid)], { encoding: 'utf8' })) / 1024
