// The format of tokens and of user names: creation, check and hash.
import { hash, randomBytes } from 'node:crypto'
import { crc32 } from 'node:zlib'

const prefix = 'plant_'
// 50 and 7 base-36 digits hold 256 and 32 bits.
const format = /^plant_[0-9a-z]{57}$/

const checksum = (text: string) => crc32(text).toString(36).padStart(7, '0')

/**
 * Returns a new token: a prefix, 256 random bits and a CRC-32, in base 36. A double click selects all of it.
 * Secret scanners recognize the prefix, and the checksum reveals a typing error without a look-up. See
 * https://github.blog/engineering/platform-security/behind-githubs-new-authentication-token-formats/
 */
export function createToken (): string {
  const digits = BigInt(`0x${randomBytes(32).toString('hex')}`).toString(36).padStart(50, '0')
  return prefix + digits + checksum(prefix + digits)
}

/** Checks the format only: such a token need not exist. */
export function isWellFormedToken (text: string): boolean {
  return format.test(text) && text.endsWith(checksum(text.slice(0, -7)))
}

/** Returns the SHA-256 in hexadecimal. 256 random bits need no slow hash. */
export function hashToken (token: string): string {
  return hash('sha256', token, 'hex')
}

/** Other characters could break a terminal or a log; longer user names do not fit into the index. */
export const isPrintable = (text: string) => /^[^\p{C}\p{Zl}\p{Zp}]{1,255}$/u.test(text)
