import { execFile } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { promisify } from 'node:util'
import t from 'tap'
import { startApp } from './support/app.ts'
import { asShipped } from './support/program.ts'

const { as, listen } = await startApp(t)
const address = await listen()
const token = (await as('alice')).authorization.replace('Bearer ', '')

const runScript = (TOKEN: string) =>
  promisify(execFile)('env', [...asShipped, process.execPath, 'examples/plants.ts'],
    { env: { ...process.env, BASE: address, TOKEN } })

t.test('the script creates, lists and deletes plants', async (t) => {
  t.equal((await runScript(token)).stdout, [
    "created { name: 'Monstera deliciosa', tag: 'tropical' }",
    "yours [ { name: 'Monstera deliciosa', tag: 'tropical' } ]",
    'left []\n'
  ].join('\n'))
})

t.test('the script reports the error of a rejected request', async (t) => {
  await t.rejects(runScript('plant_1'), /The bearer token is not valid. \(40102\)/)
})

t.test('the requests of the .http file succeed one after the other', async (t) => {
  const file = await readFile('examples/plants.http', 'utf8')
  const requests =
    file.replaceAll('{{base}}', address).replaceAll('{{token}}', token).split(/^###.*\n/m).slice(1)
  const statuses: number[] = []
  for (const request of requests) {
    const [head = '', body] = request.trim().split('\n\n')
    const [start = '', ...headers] = head.split('\n')
    const [method, url = ''] = start.split(' ')
    const response = await fetch(url,
      { method, body, headers: headers.map((line) => line.split(': ') as [string, string]) })
    statuses.push(response.status)
  }
  t.same(statuses, [200, 200, 204])
})
