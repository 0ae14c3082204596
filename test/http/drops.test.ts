import { once } from 'node:events'
import { Readable } from 'node:stream'
import t from 'tap'
import { dropInTurns } from '../../src/http/drops.ts'

t.test('what is dropped is read to its end, eight pieces in a turn of the event loop', async (t) => {
  let turn = 0
  const pieces: number[] = []
  let counting = setImmediate(function count () {
    turn++
    counting = setImmediate(count)
  })
  const streams = Array.from({ length: 20 }, () => Readable.from(Array(10).fill('x')))
  const ends = streams.map((stream) => once(stream, 'end'))
  for (const stream of streams) {
    dropInTurns(stream)
    stream.on('data', () => { pieces[turn] = (pieces[turn] ?? 0) + 1 })
  }
  await Promise.all(ends)
  clearImmediate(counting)
  const [first, ...later] = pieces.filter(Boolean)
  t.equal(first, 20, 'the first piece of each comes by itself')
  t.strictSame(later.slice(0, -1).filter((count) => count !== 8), [])
  t.equal(later.reduce((sum, count) => sum + count, 0), 180)
})
