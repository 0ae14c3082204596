// Lists of large plants: what of them is in memory at a time, and for whom.
import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'

const { as, database, url } = await startApp(t)

t.test('a list whose large plants are one page is read once, and sent whole', async (t) => {
  await sql(url, `insert into plants (owner, id, name) values
    ('lena', 1, 'Ivy'), ('lena', 2, repeat('n', 100000)),
    ('mia', 1, repeat('n', 100000)), ('mia', 2, 'Ivy')`)
  const { read } = database
  let longReads = 0
  let begunAt = NaN
  database.read = (statement, values, options) => {
    if (options?.isLong) longReads++
    else begunAt = performance.now()
    const counts = options?.isLong && !options.isUnderWay
    if (counts) t.ok(options.since as number <= begunAt, 'its waits are counted from the request on')
    return read(statement, values, options)
  }
  t.teardown(() => { database.read = read })
  const whole = await (await as('lena')).list()
  t.match(whole.headers, { 'content-length': String(whole.rawPayload.length) })
  t.equal(whole.json().length, 2)
  t.equal(longReads, 1)
  const cut = await (await as('mia')).list()
  t.equal(cut.headers['content-length'], undefined)
  t.equal(cut.json().length, 2)
  t.equal(longReads, 3)
})
