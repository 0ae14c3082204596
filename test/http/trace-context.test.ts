import t from 'tap'
import { readTraceparent } from '../../src/http/trace-context.ts'

const [traceId, parentId] = ['4bf92f3577b34da6a3ce929d0e0e4736', '00f067aa0ba902b7']

t.test('a traceparent gives its ids and whether it is sampled', async (t) => {
  t.strictSame(readTraceparent(`00-${traceId}-${parentId}-01`), { traceId, parentId, isSampled: true })
  t.strictSame(readTraceparent(`00-${traceId}-${parentId}-00`), { traceId, parentId, isSampled: false })
  // Of the flags only the lowest bit is known.
  t.equal(readTraceparent(`00-${traceId}-${parentId}-03`)?.isSampled, true)
  t.equal(readTraceparent(`00-${traceId}-${parentId}-fe`)?.isSampled, false)
})

t.test('what is not a traceparent to the letter counts as none', async (t) => {
  for (const header of [undefined, '', 'x', `01-${traceId}-${parentId}-01`, `ff-${traceId}-${parentId}-01`,
    `00-${traceId.toUpperCase()}-${parentId}-01`, `00-${'0'.repeat(32)}-${parentId}-01`,
    `00-${traceId}-${'0'.repeat(16)}-01`, `00-${traceId}-${parentId}-1`, `00-${traceId}-${parentId}-01-x`,
    ` 00-${traceId}-${parentId}-01`, `00-${traceId}-${parentId}-01, 00-${traceId}-${parentId}-01`,
    `00-${traceId.slice(1)}-${parentId}-01`, `00-${traceId}-${parentId}x-01`]) {
    t.equal(readTraceparent(header), undefined, String(header))
  }
})
