// The contract between the guard of the routes and a kind of credentials.

export interface Identity {
  user: string
  readOnly: boolean
  /** Identifies one of the user's credentials in the log. */
  id?: string
}

/**
 * Resolves a token to the identity of its holder. Rejects with TOKEN_INVALID for every invalid token; the
 * error's cause is the reason, for the log. Rejects with DATABASE_UNAVAILABLE when it cannot tell.
 */
export type Authenticate = (token: string) => Promise<Identity>
