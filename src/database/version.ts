// The PostgreSQL versions that the service supports.

const oldest = 15

/** Asks for the version as a number: 180004 for 18.4. */
export const versionStatement = { name: 'version', text: 'select current_setting(\'server_version_num\')' }

/** Another server is needed: retrying does not help. */
export class UnsupportedServer extends Error {}

/** Returns the version as people write it. Throws UnsupportedServer when it is too old. */
export function supportedVersion (number: unknown): string {
  const version = `${Math.floor(Number(number) / 10_000)}.${Number(number) % 10_000}`
  if (Number(number) >= oldest * 10_000) return version
  throw new UnsupportedServer(
    `PostgreSQL ${version} is too old. The service needs PostgreSQL ${oldest} or later.`)
}
