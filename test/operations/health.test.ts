import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'

t.test('however often it is probed, the log tells when the service ceased to be ready and when it was again', async (t) => {
  const { app, log, url } = await startApp(t)
  const probe = async () => (await app.inject('/readyz')).statusCode
  const lines = () => log.splice(0).map((line) => JSON.parse(line))

  t.strictSame([await probe(), await probe(), lines()], [200, 200, []])
  await sql(url, 'alter table tokens rename to elsewhere')
  t.strictSame([await probe(), await probe()], [503, 503])
  const [notReady, ...further] = lines()
  t.match(notReady, { level: 40, msg: 'not ready', err: { message: /relation "tokens" does not exist/ } })
  t.strictSame(further, [])
  await sql(url, 'alter table elsewhere rename to tokens')
  t.strictSame([await probe(), await probe()], [200, 200])
  t.match(lines(), [{ level: 30, msg: 'ready again' }])
})
