// The tokens in the database, by verbs.
import type { Database, Row } from '../database/database.ts'
import { wasRolledBack } from '../database/pg-errors.ts'
import { Batcher } from '../scheduling/batcher.ts'
import { createToken, hashToken } from './token-format.ts'

/** What is known of a token; the token itself is known to its holder alone. */
export interface Token {
  id: string
  user: string
  label?: string
  readOnly: boolean
  created: Date
  expires?: Date
  revoked?: Date
}

export interface NewToken {
  user: string
  label?: string
  readOnly: boolean
  expires?: Date
}

export type Tokens = ReturnType<typeof createTokens>

const columns = `id, username, label, read_only,
  extract(epoch from created_at), extract(epoch from expires_at), extract(epoch from revoked_at)`

interface LookUp { user: string, hash: string }

/** Look-ups in a statement, and such statements in flight. */
const limits = { maxItems: 64, maxInFlight: 4 }

/** Only an operator's command may create, list or revoke. `maxQueued`: look-ups before one is rejected. */
export function createTokens (database: Database, maxQueued = Infinity) {
  const lookUps = new Batcher((items: LookUp[]) => findAll(database, items), {
    name: 'token', limits: () => limits, maxQueued, isRetryable: wasRolledBack
  })
  database.addProbe('tokens', selectByHash, [[]])

  return {
    /** The text of a new token; it cannot be had again. */
    async create ({ user, label, readOnly, expires }: NewToken): Promise<string> {
      const token = createToken()
      await database.write(insert, [`\\x${hashToken(token)}`, user, label, readOnly, expires?.toISOString()])
      return token
    },

    /**
     * Undefined when no such token was ever made; one revoked or expired is still found. Who
     * asks for one that was known a moment ago does not wait with those who ask for others.
     */
    find: (hash: string, known?: Token) => lookUps.add({ user: known?.user ?? '', hash }),

    /** Of all users without a user, oldest first. */
    async list (user?: string): Promise<Token[]> {
      return (await database.read(selectByUser, [user])).map(toToken)
    },

    /** How many were revoked: 0 when there is none by that id or all had been. */
    async revoke (by: { id: string } | { user: string }): Promise<number> {
      const [statement, value] = 'id' in by ? [revokeById, by.id] : [revokeByUser, by.user]
      const rows = await database.write(statement, [value])
      return rows.length
    }
  }
}

const insert = {
  name: 'token-insert',
  text: 'insert into tokens (hash, username, label, read_only, expires_at) values ($1, $2, $3, $4, $5)'
}
// The subselect hides the array's length from the planner. Otherwise PostgreSQL replans most look-ups.
const selectByHash = {
  name: 'tokens-by-hash',
  text: `select encode(hash, 'hex'), ${columns} from tokens where hash = any ((select $1::bytea[])::bytea[])`
}
const selectByUser = {
  name: 'tokens-by-user',
  text: `select ${columns} from tokens where $1::text is null or username = $1 order by created_at, id`
}
const revokeById = {
  name: 'token-revoke',
  text: 'update tokens set revoked_at = now() where id = $1 and revoked_at is null returning id'
}
const revokeByUser = {
  name: 'tokens-revoke',
  text: 'update tokens set revoked_at = now() where username = $1 and revoked_at is null returning id'
}

async function findAll (database: Database, lookUps: LookUp[]): Promise<Array<Token | undefined>> {
  const rows = await database.readHedged(selectByHash, [lookUps.map(({ hash }) => `\\x${hash}`)])
  const found = new Map(rows.map(([hash, ...row]) => [hash, toToken(row)]))
  return lookUps.map(({ hash }) => found.get(hash))
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
