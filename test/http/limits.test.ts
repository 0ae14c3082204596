import type { IncomingMessage } from 'node:http'
import t from 'tap'
import { startApp } from '../support/app.ts'

t.test('a request without a body has no stream to be set up, ended and closed', async (t) => {
  const { app, listen } = await startApp(t)
  const address = await listen()
  const requests: Array<[method: string | undefined, isEnded: boolean]> = []
  app.server.prependListener('request', ({ method, readableEnded }: IncomingMessage) => { requests.push([method, readableEnded]) })
  await fetch(`${address}/livez`)
  await fetch(`${address}/livez`, { method: 'POST', body: 'a body' })
  t.strictSame(requests, [['GET', true], ['POST', false]])
})

t.test('what takes no token has no use for a body, however large it is', async (t) => {
  const { app } = await startApp(t)
  for (const size of [1, 100_000]) {
    const answer = await app.inject({ url: '/livez', headers: { 'content-type': 'text/plain' }, payload: 'x'.repeat(size) })
    t.match([answer.statusCode, answer.json()], [200, { status: 'ok' }], `${size}`)
  }
})
