// The types of settings: which texts a setting accepts, and which values they become.

export interface Setting<Value> {
  initial: string | undefined
  /** The accepted values in words. */
  values: string
  meaning: string
  /** Returns undefined for a value that is not accepted. */
  parse: (text: string) => Value | undefined
}

export type ValuesOf<Settings> = {
  [Name in keyof Settings]: Settings[Name] extends Setting<infer Value> ? Value : never
}

const unitsInMs = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

/** Returns the milliseconds of a duration such as 500ms, 3s, 12h or 90d, or NaN for any other text. */
export function parseDuration (text: string): number {
  const [, digits, unit] = /^(\d{1,7})(ms|s|m|h|d)$/.exec(text) ?? []
  return text === '0' ? 0 : Number(digits) * unitsInMs[unit as keyof typeof unitsInMs]
}

export const text = <Initial extends string | undefined> (
  initial: Initial, values: string, meaning: string, isValid: (text: string) => boolean = Boolean
): Setting<string | Extract<Initial, undefined>> =>
    ({ initial, values, meaning, parse: (text) => isValid(text) ? text : undefined })

export const oneOf = (initial: string, words: string[], meaning: string) =>
  text(initial, words.join(', '), meaning, (word) => words.includes(word))

export const listOf = (initial: string, words: string[], meaning: string) =>
  text(initial, `names separated by commas: ${words.join(', ')}`, meaning,
    (names) => names.split(',').every((name) => words.includes(name.trim())))

const inRange = (value: number, min: number, max: number) => value >= min && value <= max ? value : undefined

// `form` rejects texts that Number() would convert, such as '' to 0 and '0x10' to 16.
export const number = <Initial extends string | undefined> (
  initial: Initial, [min, max]: [number, number], meaning: string, form = /^(0|[1-9]\d*)$/
): Setting<number | Extract<Initial, undefined>> => ({
    initial,
    values: `${min} to ${max}`,
    meaning,
    parse: (text) => form.test(text) ? inRange(Number(text), min, max) : undefined
  })

export const duration = (initial: string, max: string, meaning: string, min = '0'): Setting<number> => ({
  initial,
  values: `${min} to ${max} with a unit, such as 500ms or 3s`,
  meaning,
  parse: (text) => inRange(parseDuration(text), parseDuration(min), parseDuration(max))
})
