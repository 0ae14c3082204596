// Decompresses gzip files, with zeros between and after their members.
import { finished } from 'node:stream/promises'
import { promisify } from 'node:util'
import { createGunzip } from 'node:zlib'

/**
 * Tapes and some object stores pad files with zeros, and such files may be concatenated. Node's Gunzip ends
 * at a zero after a member, and ignores the rest. Rejects if other data follows a member.
 */
export async function * gunzip (chunks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let reader = openReader()
  for await (const chunk of chunks) {
    for (let rest = chunk; rest.length > 0;) {
      if (reader.hasEnded()) {
        const start = rest.findIndex((byte) => byte !== 0)
        if (start === -1) break
        rest = rest.subarray(start)
        reader = openReader()
      }
      const { output, bytesRead } = await reader.read(rest)
      yield * output
      rest = rest.subarray(bytesRead)
    }
  }
  if (!reader.hasEnded()) yield * await reader.end()
}

/** Reads members until a zero follows a member. */
function openReader () {
  const unzip = createGunzip()
  const write = promisify((chunk: Buffer, done: (error?: Error | null) => void) => unzip.write(chunk, done))
  let output: Buffer[] = []
  unzip.on('data', (data) => { output.push(data) })
  const ended = finished(unzip, { writable: false })
  ended.catch(() => {})
  const take = () => {
    const taken = output
    output = []
    return taken
  }
  return {
    hasEnded: () => unzip.readableEnded,

    async read (chunk: Buffer) {
      const before = unzip.bytesWritten
      // After the end, Gunzip never calls back.
      await Promise.race([write(chunk), ended])
      return { output: take(), bytesRead: unzip.bytesWritten - before }
    },

    async end (): Promise<Buffer[]> {
      unzip.end()
      await ended
      return take()
    }
  }
}
