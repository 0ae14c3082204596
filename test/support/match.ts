import type { Test } from 'tap'

/** Like `t.match`, but fails if `found` has further elements, which `t.match` accepts. */
export function matchEach (t: Test, found: unknown[], patterns: unknown[]): void {
  t.match(found, patterns)
  t.equal(found.length, patterns.length, 'as many elements as patterns')
}
