import { Socket } from 'node:net'
import t, { type Test } from 'tap'
import { openDatabase } from '../../src/database/database.ts'
import { createDatabase } from '../support/database.ts'

const one = { name: 'one', text: 'select 1' }
const two = { name: 'two', text: 'select $1::int' }

/** Records the messages of each write to the server: P is Parse, B is Bind, E is Execute, S is Sync. */
function watchWrites (t: Test, url: string): string[] {
  const writes: string[] = []
  const watch = (socket: Socket, pieces: Buffer[]) => {
    if (socket.remotePort === Number(new URL(url).port)) writes.push(kindsOf(Buffer.concat(pieces)))
  }
  const { _write, _writev } = Socket.prototype
  t.teardown(() => Object.assign(Socket.prototype, { _write, _writev }))
  Object.assign(Socket.prototype, {
    _write (this: Socket, chunk: Buffer, ...rest: [BufferEncoding, () => void]) {
      watch(this, [chunk])
      return _write.call(this, chunk, ...rest)
    },
    _writev (this: Socket, chunks: Array<{ chunk: Buffer, encoding: BufferEncoding }>, done: () => void) {
      watch(this, chunks.map(({ chunk }) => chunk))
      return _writev?.call(this, chunks, done)
    }
  })
  return writes
}

/** Returns the first byte of each message, a letter. The next four bytes are the message's length. */
function kindsOf (bytes: Buffer): string {
  let kinds = ''
  for (let at = 0; at < bytes.length; at += 1 + bytes.readInt32BE(at + 1)) {
    kinds += String.fromCharCode(bytes.readUInt8(at))
  }
  return kinds
}

t.test('a statement is parsed once, and its columns are never described', async (t) => {
  const url = await createDatabase(t)
  const database = openDatabase({ url, statementTimeoutMs: 60_000 })
  t.teardown(() => database.close())
  await database.read(one)
  const writes = watchWrites(t, url)
  t.strictSame(await database.read(two, [2]), [['2']])
  t.strictSame(await database.read(two, [3]), [['3']])
  t.strictSame(writes.splice(0), ['PBES', 'BES'])
  await Promise.all(Array.from({ length: 10 }, () => database.read(one)))
  t.strictSame(writes, ['BES', 'BES'.repeat(9)], 'later statements of a tick share one write')
})
