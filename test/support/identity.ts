import type { Identity } from '../../src/scheduling/batcher.ts'

/** Returns an identity that never needs another check. */
export const identityOf = (user: string): Identity =>
  ({ user, validUntil: Infinity, renew: () => Promise.resolve() })
