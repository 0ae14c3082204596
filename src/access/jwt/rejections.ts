// Turns the errors of jose, the JWT library, into errors of the API.
import { ApiError, errors } from '../../errors.ts'
import { jwtRejections, type JwtRejection } from '../../events.ts'

/** Maps an error code of jose, or the name of a wrong claim, to a reason. All wrong claims share one code. */
const reasons: Record<string, JwtRejection> = {
  ERR_JOSE_ALG_NOT_ALLOWED: 'algorithm',
  ERR_JOSE_NOT_SUPPORTED: 'malformed',
  ERR_JWKS_MULTIPLE_MATCHING_KEYS: 'unknown_key',
  ERR_JWKS_NO_MATCHING_KEY: 'unknown_key',
  ERR_JWS_INVALID: 'malformed',
  ERR_JWS_SIGNATURE_VERIFICATION_FAILED: 'signature',
  ERR_JWT_EXPIRED: 'expired',
  ERR_JWT_INVALID: 'malformed',
  aud: 'audience',
  exp: 'malformed',
  iat: 'malformed',
  iss: 'issuer',
  nbf: 'not_yet_valid',
  typ: 'type'
}

// All rejections for one reason share an error. A new error for each would spend time on a stack trace.
export const rejections = Object.fromEntries(jwtRejections.map((cause) =>
  [cause, new ApiError(errors.TOKEN_INVALID, { cause })])) as Record<JwtRejection, ApiError>

/** An error that `reasons` does not list concerns the keys. The token may be valid, so the status is 503. */
export function toRejection (error: unknown): ApiError {
  if (error instanceof ApiError) return error
  const { code, claim } = error as { code: string, claim?: string }
  const reason = reasons[code === 'ERR_JWT_CLAIM_VALIDATION_FAILED' ? String(claim) : code]
  return reason === undefined ? new ApiError(errors.KEYS_UNAVAILABLE, { cause: error }) : rejections[reason]
}
