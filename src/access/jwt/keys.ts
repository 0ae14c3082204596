// Fetches the public keys of the identity provider in the background.
import type { FastifyBaseLogger } from 'fastify'
import { createLocalJWKSet, type LocalJWKSet } from 'jose'
import { isSecureUrl, type Config } from '../../config.ts'
import { ApiError, errors } from '../../errors.ts'
import { keyEvents } from '../../telemetry-events.ts'

export type Keys = ReturnType<typeof createKeys>

const maxBytes = 262_144
const defaults = { refreshMs: 600_000, retryMs: 5000, cooldownMs: 30_000, timeoutMs: 5000 }

/** Unlike jose's remote key set, keeps the old keys while fetches fail. */
export function createKeys (settings: Config, log: FastifyBaseLogger, times = defaults) {
  const closed = new AbortController()
  let keys: { set: LocalJWKSet, text: string, fetchedAt: number } | undefined
  let refetchedAt = -Infinity
  let failure: ApiError | undefined
  let fetching: Promise<void> | undefined
  let timer: NodeJS.Timeout | undefined

  async function fetchNow (): Promise<void> {
    clearTimeout(timer)
    const signal = AbortSignal.any([closed.signal, AbortSignal.timeout(times.timeoutMs)])
    try {
      const text = await fetchKeys(settings, signal)
      // If the keys are unchanged, keep the old set. A new set would empty the cache of verified JWTs.
      const set = text === keys?.text ? keys.set : readKeys(text)
      if (keys === undefined || failure) log.info('the keys of the identity provider are fetched')
      keys = { text, set, fetchedAt: performance.now() }
      failure = undefined
    } catch (error) {
      if (closed.signal.aborted) return
      if (failure === undefined) log.warn({ err: error }, errors.KEYS_UNAVAILABLE.message)
      failure = new ApiError(errors.KEYS_UNAVAILABLE, { cause: error })
    }
    fetching = undefined
    timer = setTimeout(refresh, failure === undefined ? times.refreshMs : times.retryMs).unref()
    keyEvents.publish({ result: failure === undefined ? 'succeeded' : 'failed' })
  }

  const refresh = () => { fetching = fetchNow() }

  return {
    /** Fetches the keys now, and then regularly until `close`. */
    refresh,

    /** Undefined before the first successful fetch, and when the keys are older than JWT_KEYS_MAX_AGE. */
    current: (): LocalJWKSet | undefined =>
      keys && performance.now() - keys.fetchedAt <= settings.JWT_KEYS_MAX_AGE ? keys.set : undefined,

    /** Fetches at most once per `cooldownMs`. Resolves to the last keys. Rejects if the last fetch failed. */
    async refetch (): Promise<LocalJWKSet> {
      if (fetching === undefined && performance.now() - refetchedAt >= times.cooldownMs) {
        refetchedAt = performance.now()
        refresh()
      }
      await fetching
      if (failure !== undefined) throw failure
      return keys?.set as LocalJWKSet
    },

    /** Ends a fetch. Later fetches fail at once, without a log line. */
    close: () => closed.abort()
  }
}

/** Throws if no key is for signatures: JWTs must get 503, not 401, while the provider publishes no keys. */
function readKeys (text: string): LocalJWKSet {
  const set = createLocalJWKSet(JSON.parse(text))
  const isEmpty = set.jwks().keys.every(({ use }) => use === 'enc')
  if (isEmpty) throw new Error('the provider publishes no keys for signatures')
  return set
}

async function fetchKeys (settings: Config, signal: AbortSignal): Promise<string> {
  const { JWT_ISSUER: issuer = '', JWT_JWKS_URL: jwksUrl } = settings
  if (jwksUrl !== undefined) return fetchText(jwksUrl, signal)
  const url = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`
  const { issuer: named, jwks_uri: discovered } = JSON.parse(await fetchText(url, signal))
  if (named !== issuer) throw new Error(`${url} names the issuer ${JSON.stringify(named)}`)
  if (!isSecureUrl(discovered)) throw new Error(`${url} names no secure URL of keys`)
  return fetchText(discovered, signal)
}

/** Follows no redirects: a redirect could lead to a host inside the operator's network. */
async function fetchText (url: string, signal: AbortSignal): Promise<string> {
  const { body, ok, status } = await fetch(url, { redirect: 'error', signal })
  let bytes = Buffer.alloc(0)
  for await (const chunk of body ?? []) {
    bytes = Buffer.concat([bytes, chunk])
    if (bytes.length > maxBytes) throw new Error(`${url} responded with more than ${maxBytes} bytes`)
  }
  if (!ok) throw new Error(`${url} responded with status ${status}`)
  return bytes.toString()
}
