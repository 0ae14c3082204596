// Writes the log to standard output.

/** If more bytes are pending, log lines are dropped. Otherwise a stalled reader would fill the memory. */
const maxPendingBytes = 2 ** 20

/** On a terminal, formats the lines. Avoids pino's own stream, which blocks the exit while a pipe is full. */
export async function openLogStream () {
  const { stdout } = process
  if (stdout.isTTY) return (await import('pino-pretty')).default({ sync: true })
  // A log write that fails must not end the service.
  stdout.on('error', () => {})
  let dropped = 0
  const countIfFailed = (lines: number) => (error?: Error | null) => { if (error) dropped += lines }
  const countOne = countIfFailed(1)
  return {
    write (line: string): void {
      if (stdout.writableLength > maxPendingBytes) {
        dropped++
        return
      }
      if (dropped > 0) {
        const warning = { level: 'warn', time: new Date(), dropped, msg: 'log lines were dropped' }
        stdout.write(`${JSON.stringify(warning)}\n`, countIfFailed(dropped))
        dropped = 0
      }
      stdout.write(line, countOne)
    }
  }
}

/** Resolves when standard output has accepted all earlier log lines. */
export const flushLog = () => new Promise((resolve) => { process.stdout.write('', resolve) })
