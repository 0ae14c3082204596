// Writes the log to standard output.

/** On a terminal, formats the lines. Avoids pino's own stream, which blocks the exit while a pipe is full. */
export async function openLogStream () {
  const { stdout } = process
  if (stdout.isTTY) return (await import('pino-pretty')).default({ sync: true })
  // A log write that fails must not end the service.
  stdout.on('error', () => {})
  let dropped = 0
  const send = (text: string, lines: number) => stdout.write(text, (error) => { if (error) dropped += lines })
  return {
    write (line: string): void {
      // Drop lines while over 1 MiB is pending. Otherwise a stalled reader would fill the memory.
      if (stdout.writableLength > 2 ** 20) dropped++
      else {
        if (dropped > 0) {
          const warning = { level: 'warn', time: new Date(), dropped, msg: 'log lines were dropped' }
          send(`${JSON.stringify(warning)}\n`, dropped)
          dropped = 0
        }
        send(line, 1)
      }
    }
  }
}
