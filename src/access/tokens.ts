// Creates, finds and revokes the service's own bearer tokens in the database.
import type { Database, Row } from '../database/database.ts'
import { wasRolledBack } from '../database/pg-errors.ts'
import { Batcher, type Work } from '../scheduling/batcher.ts'
import { createToken, hashToken } from './token-format.ts'

export interface Token {
  id: string
  user: string
  label?: string
  readOnly: boolean
  created: Date
  expires?: Date
  revoked?: Date
}

export type NewToken = Pick<Token, 'user' | 'label' | 'readOnly' | 'expires'>

export type Tokens = ReturnType<typeof createTokens>

const columns = `id, username, label, read_only,
  extract(epoch from created_at), extract(epoch from expires_at), extract(epoch from revoked_at)`

/** `maxQueued` limits the queued look-ups of `find`, which requests call. Commands call the other methods. */
export function createTokens (database: Database, maxQueued = Infinity) {
  const lookUps = new Batcher((items: Array<Work & { hash: string }>) =>
    findAll(database, items.map(({ hash }) => hash)), {
    name: 'token', limits: () => ({ maxItems: 64, maxInFlight: 4 }), maxQueued, isRetryable: wasRolledBack
  })

  return {
    /** Resolves to the new token. The database stores only a hash. */
    async create ({ user, label, readOnly, expires }: NewToken): Promise<string> {
      const token = createToken()
      await database.write(insert, [`\\x${hashToken(token)}`, user, label, readOnly, expires?.toISOString()])
      return token
    },

    /** Also finds revoked and expired tokens. `known`, an older result, names the user for fair queuing. */
    find: (token: string, known?: Token) =>
      lookUps.add({ user: known?.user ?? '', identity: undefined, hash: hashToken(token) }),

    async list (user?: string): Promise<Token[]> {
      return (await database.read(selectByUser, [user])).map(toToken)
    },

    /** Resolves to the number of tokens that this call revoked. */
    async revoke (by: { id?: string, user?: string }): Promise<number> {
      return (await database.write(revoke, [by.id, by.user])).length
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
const selectByUser = {
  name: 'tokens-by-user',
  text: `select ${columns} from tokens where $1::text is null or username = $1 order by created_at, id`
}
const revoke = {
  name: 'tokens-revoke',
  text: `update tokens set revoked_at = now()
    where (id = $1 or username = $2) and revoked_at is null returning id`
}

async function findAll (database: Database, hashes: string[]): Promise<Array<Token | undefined>> {
  const rows = await database.readHedged(selectByHash, [hashes.map((hash) => `\\x${hash}`)])
  const found = new Map(rows.map(([hash, ...row]) => [hash, toToken(row)]))
  return hashes.map((hash) => found.get(hash))
}

function toToken ([id, user, label, readOnly, created, expires, revoked]: Row): Token {
  const toDate = (seconds: string | null | undefined) =>
    seconds == null ? undefined : new Date(Number(seconds) * 1000)
  return {
    id: id as string,
    user: user as string,
    label: label ?? undefined,
    readOnly: readOnly === 't',
    created: toDate(created) as Date,
    expires: toDate(expires),
    revoked: toDate(revoked)
  }
}

export function tokenState ({ revoked, expires }: Token): 'active' | 'revoked' | 'expired' {
  if (revoked !== undefined) return 'revoked'
  return expires !== undefined && expires.getTime() <= Date.now() ? 'expired' : 'active'
}
