import t from 'tap'
import { parseServers } from '../../src/database/servers.ts'

const read = (url: string) => parseServers(url).urls

t.test('a string with one host stays as it is', async (t) => {
  for (const url of [
    'postgres://u:p%2Cq@one:5432/db?sslmode=require', 'postgresql://one', 'postgres://u@/db?host=/run/postgresql',
    'postgres://[::1]:5432/db'
  ]) t.strictSame(parseServers(url), { urls: [url], target: 'read-write' })
})

t.test('each of several hosts has its own port, or none', async (t) => {
  t.strictSame(read('postgres://u:p@one:5433,two,[::1]:5434/db?sslmode=verify-full'), [
    'postgres://u:p@one:5433/db?sslmode=verify-full',
    'postgres://u:p@two/db?sslmode=verify-full',
    'postgres://u:p@[::1]:5434/db?sslmode=verify-full'
  ])
})

t.test('hosts and ports may be parameters: as many ports as hosts, or one for all', async (t) => {
  t.strictSame(read('postgres://u@/db?host=/run/a,two&port=5433,5434'), [
    'postgres://u@/db?host=%2Frun%2Fa&port=5433',
    'postgres://u@/db?host=two&port=5434'
  ])
  t.strictSame(read('postgres://u@one,two/db?port=5433'), ['postgres://u@one/db?port=5433', 'postgres://u@two/db?port=5433'])
  t.throws(() => read('postgres://one,two,three/db?port=1,2'), { message: 'could not match 2 port numbers to 3 hosts' })
})

t.test('a target is one of those that take writes', async (t) => {
  t.equal(parseServers('postgres://one,two/db?target_session_attrs=primary').target, 'primary')
  t.equal(parseServers('postgres://one/db?target_session_attrs=any').target, 'any')
  t.throws(() => parseServers('postgres://one/db?target_session_attrs=standby'), { message: /^target_session_attrs can be read-write, primary, any/ })
})
