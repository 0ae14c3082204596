// The destination of the log: standard output.

/** Past this size lines are dropped, so that a stalled reader of the log costs no memory. */
const maxPendingBytes = 2 ** 20

/** Lines are readable on a terminal. Pino's own stream would block the exit when a pipe is full. */
export async function openLogStream () {
  const { stdout } = process
  if (stdout.isTTY) return (await import('pino-pretty')).default({ sync: true })
  // A log that cannot be written must not end the service.
  stdout.on('error', () => {})
  let dropped = 0
  return {
    write (line: string): void {
      if (stdout.writableLength > maxPendingBytes) {
        dropped++
        return
      }
      if (dropped > 0) {
        const warning = { level: 'warn', time: new Date(), dropped, msg: 'log lines were dropped' }
        stdout.write(`${JSON.stringify(warning)}\n`)
        dropped = 0
      }
      stdout.write(line)
    }
  }
}

/** Resolves when standard output has taken all that was written. */
export const flushLog = () => new Promise((resolve) => { process.stdout.write('', resolve) })
