// Who is calling: the seam between the guard and whatever kinds of credentials there are.

export interface Caller {
  user: string
  readOnly: boolean
  /** Which of the user's credentials it is, for the log. */
  id?: string
}

/**
 * From the text of a token to its caller. Throws TOKEN_INVALID, the same for
 * every reason, with the reason as cause for the log; DATABASE_UNAVAILABLE when
 * it can't tell. Another kind of credential is another function of this type.
 */
export type Authenticate = (token: string) => Promise<Caller>
