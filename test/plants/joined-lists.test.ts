import t from 'tap'
import { startApp } from '../support/app.ts'
import { createDatabase, sql } from '../support/database.ts'
import { startHeldUp } from '../support/held-up.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const statuses = (answers: Array<{ statusCode: number }>) => answers.map(({ statusCode }) => statusCode)

// Each could be taken for another by a careless array, number, null or order.
const owners = [
  '1', '2', '01', '1 ', 'a,b', 'a', 'b', '{a,b}', '"a"', 'a"b', 'a\\', 'NULL', 'null', '{}', 'A', 'á', '$1'
]

/** What an owner has depends on the place: nothing, a little, too large a plant, more than a page. */
function plantsOf (owner: string, place: number) {
  const count = [0, 1, 20, 3, 700][place % 5] as number
  return range(count).map((id) => ({
    name: place % 5 === 3 && id === 1 ? `${owner} ${'n'.repeat(600)}` : `plant ${id}`,
    ...(id + place) % 2 === 0 && { tag: owner }
  }))
}

async function store (url: string): Promise<void> {
  for (const [place, owner] of owners.entries()) {
    const plants = plantsOf(owner, place)
    await sql(url, `insert into plants (owner, id, name, tag)
      select $1, ordinality, name, tag
      from unnest($2::text[], $3::text[]) with ordinality as plant (name, tag)`,
    [owner, plants.map(({ name }) => name), plants.map(({ tag }) => tag)])
  }
}

/** Whether the last lists were read by one statement. */
async function isJoinedIn (url: string): Promise<boolean> {
  const last = await sql(url, `select query from pg_stat_activity
    where application_name = 'plant-store' and datname = current_database()`)
  return last.some(({ query }) => (query as string).includes('unnest'))
}

for (const [WRITE_BATCH, isJoined] of [['500', true], ['1', false]] as const) {
  const how = isJoined ? 'together' : 'one by one'
  t.test(`with WRITE_BATCH=${WRITE_BATCH} lists that wait are read ${how}, and never mix`, async (t) => {
    const { as, begin, letGo, url } = await startHeldUp(t, { WRITE_BATCH }, 'lock table plants')
    await store(url)
    const users = await Promise.all(owners.map((owner) => as(owner)))
    // Their tokens are known from here on.
    await Promise.all(users.map((user) => user.list('?limit=0')))
    const limits = [undefined, 0, 1, 2, 19, 500, 501]
    const wanted = owners.flatMap((_, place) => limits.map((limit) => ({ place, limit })))
      // Neighbours are different owners, and each owner is there several times.
      .toSorted((a, b) => (a.place * 31 + (a.limit ?? 7)) % 17 - (b.place * 31 + (b.limit ?? 7)) % 17)
    const answers = await begin(...wanted.map(({ place, limit }) => () =>
      (users[place] as typeof users[0]).list(limit === undefined ? '' : `?limit=${limit}`)))
    await letGo()
    for (const [index, answer] of (await Promise.all(answers)).entries()) {
      const { place, limit } = wanted[index] as typeof wanted[0]
      const owner = owners[place] as string
      t.strictSame(answer.json(), plantsOf(owner, place).slice(0, limit), `${limit ?? 'all'} of ${owner}`)
    }
    await Promise.all(users.map((user) => user.list('?limit=1')))
    t.equal(await isJoinedIn(url), isJoined)
  })
}

t.test('lists that would have to wait behind MAX_WAITING others are refused at once', async (t) => {
  const { begin, letGo, alice } = await startHeldUp(t, { MAX_WAITING: '3' }, 'lock table plants')
  const answers = await begin(...range(5).map(() => () => alice.list()))
  t.match((await answers[4])?.json(), { error: 50302 })
  await letGo()
  t.strictSame(statuses(await Promise.all(answers)), [200, 200, 200, 200, 503])
})

t.test('where the database refuses the statement for several lists they are read one by one', async (t) => {
  const url = await createDatabase(t)
  await store(url)
  // A type that only the statement for several lists names, and none of their values has.
  await sql(url, `create schema refusing;
    create type refusing.text as enum ();
    do $$ begin
      execute format('alter database %I set search_path = refusing, pg_catalog, public', current_database());
    end $$`)
  const { as, log } = await startApp(t, { DATABASE_URL: url })
  const users = await Promise.all(owners.map((owner) => as(owner)))
  const answers = await Promise.all(users.map((user) => user.list()))
  for (const [place, owner] of owners.entries()) {
    t.strictSame(answers[place]?.json(), plantsOf(owner, place), owner)
  }
  t.strictSame(log.filter((line) => /warn|error/.test(JSON.parse(line).level)), [])
})
