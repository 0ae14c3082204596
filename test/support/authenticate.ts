import type { Access, Authenticator } from '../../src/access/bearer.ts'

/** Returns a function that checks a token as a request does: first in the cache, then by a look-up. */
export const authenticateWith = ({ cached, check }: Authenticator) =>
  async (token: string): Promise<Access> => cached(token) ?? check(token)
