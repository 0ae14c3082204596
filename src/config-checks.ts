// Compares the environment with the settings and with SECURITY.md, to show an operator what is wrong.
import { settings } from './config.ts'

/** Returns the settings that are not left to their defaults, without passwords and DATABASE_URL. */
export const givenSettings = (environment: NodeJS.ProcessEnv = process.env): Record<string, string> =>
  Object.fromEntries(Object.entries(environment).flatMap(([name, value = '']) =>
    name in settings && name !== 'DATABASE_URL' ? [[name, value.replace(/:\/\/.*@/, '://…@')]] : []))

/** Returns a sentence for each variable that is almost called like a setting. */
export const findMisspelledSettings = (environment: NodeJS.ProcessEnv = process.env): string[] =>
  Object.keys(environment).filter((name) => !(name in settings)).flatMap((name) => {
    const setting = [1, 2, 3].map((edits) => findSimilar(name.toUpperCase(), edits)).find(Boolean)
    return setting === undefined ? [] : [`${name} is no setting: did you mean ${setting}?`]
  })

const findSimilar = (name: string, edits: number) => Object.keys(settings).find((setting) =>
  // In a short name, two letters are too many: HOME is not HOST.
  (edits === 1 || setting.length >= 5 * edits) && isWithin(edits, name, setting))

/** Whether a version of Node has vulnerabilities that SECURITY.md lists. `engines` has the same versions. */
export const isOldNode = (version: string) => Number.parseInt(version) < 26 &&
  !(version.startsWith('24.') && version.localeCompare('24.22.3', 'en', { numeric: true }) >= 0)

/** Returns how many files and sockets this process may open, or NaN without a limit. */
export function maxDescriptors (): number {
  // Otherwise the report looks up the names of the sockets' addresses.
  Object.assign(process.report, { excludeNetwork: true })
  const { userLimits } = process.report.getReport() as { userLimits?: { open_files: { soft: unknown } } }
  return Number(userLimits?.open_files.soft)
}

/** Whether `edits` letters that are added, removed, replaced or swapped with the next turn `a` into `b`. */
function isWithin (edits: number, a: string, b: string): boolean {
  let same = 0
  while (same < a.length && a[same] === b[same]) same++
  const [x, y] = [a.slice(same), b.slice(same)]
  if (x === y || edits < Math.max(1, Math.abs(x.length - y.length))) return x === y
  const isSwapped = x[0] === y[1] && x[1] === y[0]
  return isWithin(edits - 1, x.slice(1), y) || isWithin(edits - 1, x, y.slice(1)) ||
    isWithin(edits - 1, x.slice(1), y.slice(1)) || (isSwapped && isWithin(edits - 1, x.slice(2), y.slice(2)))
}
