// Compares raw responses with recording.txt, the responses of an earlier version. To replace recording.txt:
// RECORD=yes npm test -- --disable-coverage test/http/recording.test.ts
import { readFile, writeFile } from 'node:fs/promises'
import { connect } from 'node:net'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import t from 'tap'
import { startApp } from '../support/app.ts'

const file = join(import.meta.dirname, 'recording.txt')

const { as, listen } = await startApp(t)
const address = new URL(await listen())
const tokens: Record<string, string> = {
  alice: (await as('alice')).authorization,
  reader: (await as('alice', { readOnly: true })).authorization,
  invalid: 'Bearer plant_0'
}
const origin = ['Origin: https://app.example.com']
const preflight = [...origin, 'Access-Control-Request-Method: POST']

const requests: Array<[line: string, user?: string, headers?: string[], body?: string]> = [
  ['GET /livez'],
  ['GET /readyz'],
  ['GET /'],
  ['GET /', undefined, ['Accept: text/html']],
  ['GET /plants', 'alice'],
  ['POST /plants', 'alice', [], '{"id":1,"name":"Monstera","tag":"tropical"}'],
  ['POST /plants', 'alice', origin, '{"id":9223372036854775807,"name":"Fern"}'],
  ['POST /plants', 'alice', [], '{"id":1,"name":"Ivy"}'],
  ['POST /plants', 'alice', [], '{"id":2}'],
  ['POST /plants', 'alice', [], '{'],
  ['POST /plants', 'reader', [], '{"id":2,"name":"Ivy"}'],
  ['POST /plants', undefined, [], '{"id":2,"name":"Ivy"}'],
  ['GET /plants', 'alice', origin],
  ['GET /plants?limit=10', 'reader'],
  ['GET /plants?limit=x', 'alice'],
  ['GET /plants'],
  ['GET /plants', 'invalid', origin],
  ['HEAD /plants', 'alice'],
  ['DELETE /plants/1', 'alice'],
  ['DELETE /plants/1', 'alice'],
  ['DELETE /plants/x', 'alice'],
  ['DELETE /plants/9223372036854775807', 'reader'],
  ['OPTIONS /plants'],
  ['OPTIONS /plants', undefined, preflight],
  ['OPTIONS /nowhere', undefined, preflight],
  ['PUT /plants', 'alice'],
  ['GET /plants/', 'alice'],
  ['GET /%zz', undefined, origin],
  ['hello'],
  ['FOO /plants']
]

async function send ([line, user, headers = [], body = '']: typeof requests[0]): Promise<string> {
  const socket = connect(Number(address.port), address.hostname)
  const authorization = user === undefined ? [] : [`Authorization: ${tokens[user]}`]
  const content = body === '' ? [] : ['Content-Type: application/json', `Content-Length: ${body.length}`]
  socket.write([
    `${line} HTTP/1.1`, 'Host: x', 'Connection: close', ...authorization, ...headers, ...content, '', body
  ].join('\r\n'))
  return text(socket)
}

const mask = (response: string) => response
  .replace(/^(date): .*/im, '$1: …')
  .replace(/^(x-request-id): .*/im, '$1: …')

t.test('with nothing configured every response is what it was, byte for byte', async (t) => {
  let exchanges = ''
  for (const request of requests) {
    const [line, user = 'no token', headers = [], body = ''] = request
    const response = mask(await send(request)).replaceAll('\r', '␍')
    exchanges += `>>> ${[line, user, ...headers, body].filter(Boolean).join(' | ')}\n${response}\n\n`
  }
  if (process.env.RECORD) await writeFile(file, exchanges)
  t.equal(exchanges, await readFile(file, 'utf8'))
})
