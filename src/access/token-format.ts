// The text of a token: how it is made, recognised and turned into what is stored of it.
import { hash, randomBytes } from 'node:crypto'
import { crc32 } from 'node:zlib'

const prefix = 'plant_'
// 50 and 7 base-36 digits hold 256 and 32 bits.
const format = /^plant_[0-9a-z]{57}$/

const checksum = (text: string) => crc32(text).toString(36).padStart(7, '0')

/**
 * A new token: 256 random bits with a prefix and a CRC-32, in base 36 so that
 * a double click selects it. Prefix and checksum are GitHub's idea
 * (https://github.blog/engineering/platform-security/behind-githubs-new-authentication-token-formats/):
 * secret scanners recognise it, and a slip of the hand is found without a look-up.
 */
export function createToken (): string {
  const digits = BigInt(`0x${randomBytes(32).toString('hex')}`).toString(36).padStart(50, '0')
  return prefix + digits + checksum(prefix + digits)
}

/** Whether the text could be a token: false for one mistyped or cut short. */
export function isWellFormedToken (text: string): boolean {
  return format.test(text) && text.endsWith(checksum(text.slice(0, -7)))
}

/** SHA-256 in hexadecimal, all that is ever stored of a token. No slow hash is needed for 256 random bits. */
export function hashToken (token: string): string {
  return hash('sha256', token, 'hex')
}
