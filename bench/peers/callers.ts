// A token remembered for three seconds, for the peers in JavaScript that do so.
import { createHash } from 'node:crypto'

const rememberedMs = 3000

/** From an Authorization header to the user, undefined for a token that `find` doesn't know. */
export function rememberCallers (find: (hash: Buffer) => Promise<string | undefined>) {
  const callers = new Map<string, { user: string, until: number }>()
  return async (header = ''): Promise<string | undefined> => {
    const hash = createHash('sha256').update(header.replace(/^Bearer /i, '')).digest()
    const key = hash.toString('latin1')
    const known = callers.get(key)
    if (known !== undefined && performance.now() < known.until) return known.user
    const user = await find(hash)
    if (user !== undefined) callers.set(key, { user, until: performance.now() + rememberedMs })
    return user
  }
}

export interface NewPlant { id: number, name: string, tag?: string }

export function isNewPlant (body: unknown): body is NewPlant {
  const { id, name, tag } = (body ?? {}) as Record<string, unknown>
  return Number.isSafeInteger(id) && typeof name === 'string' && ['string', 'undefined'].includes(typeof tag)
}

/** Undefined when there is no limit, NaN when it isn't one. */
export const readLimit = (text: string | null | undefined) =>
  text == null ? undefined : /^\d{1,9}$/.test(text) ? Number(text) : NaN

/** NaN when it isn't one. */
export const readId = (text: string) => /^-?\d{1,15}$/.test(text) ? Number(text) : NaN

interface Row { name: string, tag: string | null }

export const toPlant = ({ name, tag }: Row) => tag === null ? { name } : { name, tag }
