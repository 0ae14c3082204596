import { sql } from './database.ts'

/** Returns the `after` parameter of the page that begins at `id`. */
export const cursorAt = (id: bigint | number) => Buffer.from(String(id)).toString('base64url')

/** Returns the Link header of a page of the list `name`. The next page begins at `id`. */
export const linkTo = (limit: number | bigint, id: bigint | number, name = 'plants') =>
  `<${name}?limit=${limit}&after=${cursorAt(id)}>; rel="next"`

/** Returns the query of the next page, or undefined if the response is the last page. */
export const nextQuery = ({ headers: { link } }: { headers: Record<string, unknown> }) =>
  link === undefined ? undefined : /^<\w+(.*)>; rel="next"$/.exec(String(link))?.[1] as string

export interface StoredPlant { id: bigint, name: string, tag?: string }

export async function storePlants (url: string, user: string, plants: StoredPlant[]): Promise<void> {
  await sql(url, `insert into plants (owner, id, name, tag)
    select $1, * from unnest($2::bigint[], $3::text[], $4::text[])`,
  [user, plants.map(({ id }) => id), plants.map(({ name }) => name), plants.map(({ tag }) => tag)])
}

/** Returns the body of a list. A test compares texts, because a comparison of 4,000 objects takes long. */
export const listOf = (plants: StoredPlant[]) => JSON.stringify(plants.map(({ id, ...shown }) => shown))
