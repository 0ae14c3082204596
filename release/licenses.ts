// Fails if a package in the image has a license that is not in `accepted`. Usage: node release/licenses.ts
import { readFile } from 'node:fs/promises'

const accepted = ['0BSD', 'Apache-2.0', 'BlueOak-1.0.0', 'BSD-2-Clause', 'BSD-3-Clause', 'ISC', 'MIT']

interface Package { dev?: boolean, optional?: boolean, devOptional?: boolean, license?: string }

// For a choice such as (MIT OR CC0-1.0), one accepted license is enough.
const isAccepted = (license = '') =>
  license.replaceAll(/[()]/g, '').split(' OR ').some((name) => accepted.includes(name))

/** Returns the packages in the image with their licenses, by path, without the project itself. */
export async function readLicenses (): Promise<Array<[path: string, license: string | undefined]>> {
  const lock: { packages: Record<string, Package> } = JSON.parse(await readFile('package-lock.json', 'utf8'))
  return Object.entries(lock.packages).filter(([path, { dev, optional, devOptional }]) =>
    path !== '' && !dev && !optional && !devOptional)
    .map(([path, { license }]) => [path, license])
}

if (import.meta.main) {
  const rejected = (await readLicenses()).filter(([, license]) => !isAccepted(license))
  for (const [path, license] of rejected) console.error(`${path}: ${license}`)
  if (rejected.length > 0) process.exitCode = 1
}
