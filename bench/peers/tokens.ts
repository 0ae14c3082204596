// Provides a token cache and input checks for the contenders that use Bun and Hono.
import { createHash } from 'node:crypto'

const cacheMs = 3000

/** Returns a function that maps an Authorization header to a user. An unknown token maps to undefined. */
export function cacheUsers (find: (hash: Buffer) => Promise<string | undefined>) {
  const users = new Map<string, { user: string, until: number }>()
  return async (header = ''): Promise<string | undefined> => {
    const hash = createHash('sha256').update(header.replace(/^Bearer /i, '')).digest()
    const key = hash.toString('latin1')
    const cached = users.get(key)
    if (cached !== undefined && performance.now() < cached.until) return cached.user
    const user = await find(hash)
    if (user !== undefined) users.set(key, { user, until: performance.now() + cacheMs })
    return user
  }
}

export interface NewPlant { id: number, name: string, tag?: string }

export function isNewPlant (body: unknown): body is NewPlant {
  const { id, name, tag } = (body ?? {}) as Record<string, unknown>
  return Number.isSafeInteger(id) && typeof name === 'string' && ['string', 'undefined'].includes(typeof tag)
}

/** Returns undefined when `text` is missing, and NaN for an invalid limit. */
export const readLimit = (text: string | null | undefined) =>
  text == null ? undefined : /^\d{1,9}$/.test(text) ? Number(text) : NaN

/** Returns NaN for an invalid id. */
export const readId = (text: string) => /^-?\d{1,15}$/.test(text) ? Number(text) : NaN

interface Row { name: string, tag: string | null }

export const toPlant = ({ name, tag }: Row) => tag === null ? { name } : { name, tag }
