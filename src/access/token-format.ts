// Creates, checks and hashes tokens.
import { hash, randomBytes } from 'node:crypto'
import { crc32 } from 'node:zlib'

const prefix = 'plant_'

const checksum = (text: string) => crc32(text).toString(36).padStart(7, '0')

/**
 * Returns `plant_`, 256 random bits as 50 digits in base 36, and a CRC-32 as 7. Secret scanners know it:
 * https://github.blog/engineering/platform-security/behind-githubs-new-authentication-token-formats/
 */
export function createToken (): string {
  const digits = BigInt(`0x${randomBytes(32).toString('hex')}`).toString(36).padStart(50, '0')
  return prefix + digits + checksum(prefix + digits)
}

/** Checks only the checksum, not whether the token exists. */
export const isWellFormedToken = (text: string) => text.endsWith(checksum(text.slice(0, -7)))

/** Returns the SHA-256 in hexadecimal. A fast hash is safe here, because a token has 256 random bits. */
export function hashToken (token: string): string {
  return hash('sha256', token, 'hex')
}
