// Creates, finds and revokes the service's own bearer tokens. The database stores only their hashes.
import { hash, randomBytes } from 'node:crypto'
import { crc32 } from 'node:zlib'
import { maxInFlight, type Database, type Row } from '../database/database.ts'
import { tokenUseEvents } from '../telemetry-events.ts'
import { Batcher, type Work } from '../scheduling/batcher.ts'

export interface Token {
  id: string
  user: string
  label?: string
  readOnly: boolean
  created: Date
  expires?: Date
  revoked?: Date
  /** Only `list` sets this time. */
  lastUsed?: Date
}

export type NewToken = Pick<Token, 'user' | 'label' | 'readOnly' | 'expires'>

export type Tokens = ReturnType<typeof createTokens>

// The rule for users and labels. Control characters could garble a terminal or a log. Over 255 characters may
// be too long for an index.
export const isPrintable = (text: string) => /^[^\p{C}\p{Zl}\p{Zp}]{1,255}$/u.test(text)

// Matches differences that a reader cannot see: spaces at the ends, repeated or unusual spaces, and invisible
// characters.
const invisible = / (?= |$)|^ |(?! )\p{Zs}|\p{Default_Ignorable_Code_Point}|\u2800/gu
const invisibleOrNotAscii = new RegExp(`${invisible.source}|[^\\x20-\\x7e]`, 'gu')

/** Makes texts that look alike distinct: writes a space at the end as `\u{20}`. */
export const escapeInvisible = (text: string) => text.replaceAll(
  // Texts in another normal form than NFC have letters of several characters, which look like one.
  text === text.normalize('NFC') ? invisible : invisibleOrNotAscii,
  (character) => `\\u{${character.codePointAt(0)?.toString(16)}}`)

/** The rule for new users and labels. Older ones, and users of JWTs, need not follow it. */
export const isUnambiguous = (text: string) => text === escapeInvisible(text)

const columns = `id, username, label, read_only,
  extract(epoch from created_at), extract(epoch from expires_at), extract(epoch from revoked_at)`

/** `maxQueued` limits the queued look-ups of `find`, which requests call. Commands call the other methods. */
export function createTokens (database: Database, maxQueued = Infinity) {
  const lookUps = new Batcher(async (items: Array<Work & { hash: string }>) => {
    const rows = await database.lookUp(selectByHash, [items.map(({ hash }) => `\\x${hash}`)])
    const found = new Map(rows.map(([hash, ...row]) => [hash, toToken(row)]))
    return items.map(({ hash }) => found.get(hash))
  }, { name: 'token', maxItems: 64, maxInFlight: maxInFlight.lookUps, maxQueued })

  return {
    /** Resolves to the new token. */
    async create ({ user, label, readOnly, expires }: NewToken): Promise<string> {
      const token = createToken()
      await database.write(insert, [`\\x${hashToken(token)}`, user, label, readOnly, expires?.toISOString()])
      return token
    },

    /** Also finds revoked and expired tokens. `known`, an older result, names the user for fair queuing. */
    async find (token: string, known?: Token): Promise<Token | undefined> {
      const hash = hashToken(token)
      const found = await lookUps.add({ user: known?.user ?? '', identity: undefined, hash })
      if (found !== undefined && tokenState(found) === 'active') tokenUseEvents.publish({ hash })
      return found
    },

    /** Without `user` and `id`, resolves to all tokens. */
    list: async (user?: string, id?: string) =>
      (await database.read(selectTokens, [user, id])).map(toToken),

    /** Resolves to the number of tokens that this call revoked. `id` has 16 hexadecimal digits. */
    async revoke ({ id, user }: { id?: string, user?: string }): Promise<number> {
      if (id === undefined) return (await database.write(revokeByUser, [user])).length
      const [first, last] = ['0', 'f'].map((digit) => `\\x${id.padEnd(64, digit)}`)
      return (await database.write(revokeById, [first, last])).length
    }
  }
}

const insert = {
  name: 'token-insert',
  text: 'insert into tokens (hash, username, label, read_only, expires_at) values ($1, $2, $3, $4, $5)'
}
// The subselect hides the array's length from the planner. Otherwise PostgreSQL replans every look-up.
const selectByHash = {
  name: 'tokens-by-hash',
  text: `select encode(hash, 'hex'), ${columns} from tokens where hash = any ((select $1::bytea[])::bytea[])`
}
const selectTokens = {
  name: 'tokens-list',
  text: `select ${columns}, extract(epoch from last_used_at) from tokens
    where ($1::text is null or username = $1) and ($2::text is null or id = $2) order by created_at, id`
}
const revoke = 'update tokens set revoked_at = now() where revoked_at is null'
export const revokeByUser = {
  name: 'tokens-revoke-by-user',
  text: `${revoke} and username = $1 returning id`
}
// The id of a token is the start of its hash, which has an index.
const revokeById = { name: 'tokens-revoke-by-id', text: `${revoke} and hash between $1 and $2 returning id` }

function toToken ([id, user, label, readOnly, created, expires, revoked, lastUsed]: Row): Token {
  const toDate = (seconds?: string | null) => seconds ? new Date(Number(seconds) * 1000) : undefined
  return {
    id: id as string,
    user: user as string,
    label: label ?? undefined,
    readOnly: readOnly === 't',
    created: toDate(created) as Date,
    expires: toDate(expires),
    revoked: toDate(revoked),
    lastUsed: toDate(lastUsed)
  }
}

export function tokenState ({ revoked, expires }: Token): 'active' | 'revoked' | 'expired' {
  if (revoked !== undefined) return 'revoked'
  return expires !== undefined && expires.getTime() <= Date.now() ? 'expired' : 'active'
}

const checksum = (text: string) => crc32(text).toString(36).padStart(7, '0')

/**
 * Returns `plant_`, 256 random bits as 50 digits in base 36, and a CRC-32 as 7. Secret scanners know it:
 * https://github.blog/engineering/platform-security/behind-githubs-new-authentication-token-formats/
 */
export function createToken (): string {
  const digits = BigInt(`0x${randomBytes(32).toString('hex')}`).toString(36)
  const text = `plant_${digits.padStart(50, '0')}`
  return text + checksum(text)
}

/** Checks only the checksum, not whether the token exists. */
export const isWellFormedToken = (text: string) => text.endsWith(checksum(text.slice(0, -7)))

/** Returns the id of a token: the generated column `id` has the same rule. */
export const idOf = (token: string) => hashToken(token).slice(0, 16)

/** Returns the SHA-256 in hexadecimal. A fast hash is safe here, because a token has 256 random bits. */
export const hashToken = (token: string) => hash('sha256', token, 'hex')
