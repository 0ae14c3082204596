// The PostgreSQL versions that the service supports.

const oldest = 15
/** Asks for the version as a number: 180004 for 18.4. */
export const versionStatement = { name: 'version', text: 'select current_setting(\'server_version_num\')' }

/** Returns the version as people write it. Throws when the server is too old. */
export function supportedVersion (number: unknown): string {
  const [major, minor] = [Math.floor(Number(number) / 10_000), Number(number) % 10_000]
  if (major < oldest) {
    throw new UnsupportedServer(
      `PostgreSQL ${major}.${minor} is too old. The service needs PostgreSQL ${oldest} or later.`)
  }
  return `${major}.${minor}`
}

/** Retrying does not help: another server is needed. */
export class UnsupportedServer extends Error {}
