// Finds variables that look like settings but have another name.
import { formerNames, settings } from './config.ts'

/** Returns a line for each variable with a former or misspelled name. */
export function findConfigWarnings (environment: NodeJS.ProcessEnv): string[] {
  const renamed = Object.entries(formerNames)
    .filter(([, former]) => former in environment)
    .map(([name, former]) => `${former} is now called ${name}; the old name works until the next version.`)
  const known = Object.keys(settings)
  const misspelled = Object.keys(environment)
    .filter((name) => !known.includes(name))
    .flatMap((name) => known
      .filter((setting) => !(setting in environment) && isNearly(name, setting))
      .map((setting) => `${name} is not a setting and has no effect. Did you mean ${setting}?`))
  return [...renamed, ...misspelled]
}

/** Two edits are too many for short names: HOME is no HOST. */
function isNearly (name: string, setting: string): boolean {
  return countEdits(name, setting) <= Math.min(2, setting.length / 4)
}

/** The Levenshtein distance. */
function countEdits (from: string, to: string): number {
  let above = Array.from({ length: to.length + 1 }, (_, column) => column)
  for (const [row, character] of [...from].entries()) {
    const line = [row + 1]
    for (const [column, other] of [...to].entries()) {
      const replaced = above[column] as number + (character === other ? 0 : 1)
      line.push(Math.min(replaced, above[column + 1] as number + 1, line[column] as number + 1))
    }
    above = line
  }
  return above.at(-1) as number
}
