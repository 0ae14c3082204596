// Limits the requests of each user, and the invalid tokens of each address.
import { isIPv6 } from 'node:net'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { ApiError, errors, retryAfter } from '../errors.ts'
import { addressOf } from '../http/responses.ts'
import { createTokenBuckets, type Rate } from '../scheduling/token-buckets.ts'

const rateLimited = new ApiError(errors.RATE_LIMITED)
const addressLimited = new ApiError(errors.ADDRESS_LIMITED)

/** Call this after the token check. Sets the headers of draft-ietf-httpapi-ratelimit-headers-11. */
export function limitUsers (app: FastifyInstance, rate: Rate, burst = Math.ceil(rate.count / rate.seconds)) {
  const take = createTokenBuckets(rate, burst)
  const policy = `"user";q=${burst};w=${Math.ceil(burst * rate.seconds / rate.count)}`
  app.addHook('onRequest', (request, reply, done) => {
    const { allowed, left, refillSeconds } = take(request.identity.user)
    reply.header('ratelimit-policy', policy)
    reply.header('ratelimit', `"user";r=${left};t=${refillSeconds}`)
    done(allowed ? undefined : retryAfter(rateLimited, refillSeconds))
  })
}

/** Returns a function that throws if the address of a request sent more invalid tokens than `rate` allows. */
export function limitFailedAuth (app: FastifyInstance, rate: Rate): (request: FastifyRequest) => void {
  const take = createTokenBuckets(rate, rate.count)
  app.addHook('onError', (request, _reply, { name }, done) => {
    if (name === 'TOKEN_INVALID') take(networkOf(addressOf(request)))
    done()
  })
  return (request) => {
    const { allowed, refillSeconds } = take(networkOf(addressOf(request)), 0)
    if (!allowed) throw retryAfter(addressLimited, refillSeconds)
  }
}

/** Shortens an IPv6 address to its /64 prefix, because one client may use all addresses with this prefix. */
function networkOf (address: string): string {
  if (!isIPv6(address)) return address
  const { hostname } = new URL(`http://[${address.replace(/%.*/, '')}]`)
  // An IPv4 address, as a dual-stack socket reports it.
  if (hostname.startsWith('[::ffff:')) return hostname
  const compressed = hostname.slice(1, -1)
  const zeros = '0:'.repeat(8 - compressed.split(':').filter(Boolean).length)
  return compressed.replace('::', `:${zeros}`).split(':').filter(Boolean).slice(0, 4).join(':')
}
