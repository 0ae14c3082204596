// Writes the log to standard output.

/** On a terminal, formats the lines. Avoids pino's own stream, which blocks the exit while a pipe is full. */
export async function openLogStream () {
  const { stdout } = process
  if (stdout.isTTY) return (await import('pino-pretty')).default({ sync: true })
  // A log write that fails must not end the service.
  stdout.on('error', () => {})
  let [text, lines, dropped, prefix] = ['', 0, 0, '']
  let scheduled: NodeJS.Immediate | undefined

  function flush (): void {
    scheduled = undefined
    // Drop lines while over 1 MiB is pending. Otherwise a stalled reader would fill the memory.
    if (stdout.writableLength > 2 ** 20) dropped += lines
    else {
      const warning = { level: 'warn', time: new Date(), dropped, msg: 'log lines were dropped' }
      const lost = dropped + lines
      const note = dropped > 0 ? `${prefix}${JSON.stringify(warning)}\n` : ''
      dropped = 0
      stdout.write(note + text, (error) => {
        if (error) dropped += lost
        // The write may have failed in the middle of a line.
        prefix = error ? '\n' : ''
      })
    }
    [text, lines] = ['', 0]
  }

  process.once('exit', flush)
  return {
    /** Writes the lines of each tick together: a write takes longer than a line. */
    write (line: string): void {
      text += line
      lines++
      scheduled ??= setImmediate(flush)
    }
  }
}
