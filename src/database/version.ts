// Which servers this service is made for.

const oldest = 15
/** What the server calls its version: 180004 for 18.4. */
export const versionStatement = { name: 'version', text: 'select current_setting(\'server_version_num\')' }

/** The version as people write it. Throws when the server is too old; one newer than any tested may do. */
export function supportedVersion (number: unknown): string {
  const [major, minor] = [Math.floor(Number(number) / 10_000), Number(number) % 10_000]
  if (major < oldest) {
    throw new UnsupportedServer(`PostgreSQL ${major}.${minor} is too old, this needs ${oldest} or later.`)
  }
  return `${major}.${minor}`
}

/** Says that it is no use to wait for this server. */
export class UnsupportedServer extends Error {}
