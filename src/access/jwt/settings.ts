// The settings for JWTs of an identity provider. Without JWT_ISSUER the service accepts no JWT.
import { duration, oneOf, text, type ValuesOf } from '../../setting-types.ts'

const algorithms = ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512',
  'EdDSA', 'Ed25519']

/** Accepts https, and http on this machine. Without https, a network attacker could replace the keys. */
export function isSecureUrl (text: string): boolean {
  if (/\s/.test(text) || !URL.canParse(text)) return false
  const { protocol, hostname, username, password } = new URL(text)
  const isLoopback = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname)
  return (protocol === 'https:' || (protocol === 'http:' && isLoopback)) && username + password === ''
}

/** RFC 8414, section 2, forbids a query and a fragment. A `|` would make the user `issuer|name` ambiguous. */
const isIssuer = (text: string) => isSecureUrl(text) && !/[?#|]/.test(text)

export const jwtSettings = {
  JWT_ISSUER: text(undefined, 'a URL with https, or with http for this machine, without query and fragment',
    'the identity provider that issues JWTs; without it the service accepts no JWTs', isIssuer),
  JWT_AUDIENCE: text(undefined, 'a text', 'the audience that JWTs must name; required with JWT_ISSUER'),
  JWT_JWKS_URL: text(undefined, 'a URL with https, or with http for this machine',
    'the keys of the provider; without it OpenID discovery names them', isSecureUrl),
  JWT_ALGORITHMS: text('RS256,ES256,EdDSA', `names separated by commas: ${algorithms.join(', ')}`,
    'the algorithms that may sign a JWT',
    (names) => names.split(',').every((name) => algorithms.includes(name.trim()))),
  JWT_TYPE: oneOf('at+jwt', ['at+jwt', 'JWT'], 'the `typ` that JWTs must have'),
  JWT_USER_CLAIM: text('sub', 'the name of a claim', 'the claim that names the user'),
  JWT_SCOPE_CLAIM: text(undefined, 'the name of a claim',
    'the claim that lists the scopes; without it `scope`, or else `scp`'),
  JWT_KEYS_MAX_AGE: duration('24h', '30d',
    'how long keys stay in use while the provider cannot be reached', '20m')
}

export type JwtSettings = ValuesOf<typeof jwtSettings>
