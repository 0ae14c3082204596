// Runs the samples of the page /docs and of examples/ against the service, and behind a proxy with faults.
import { execFile } from 'node:child_process'
import { readFile, rm, writeFile } from 'node:fs/promises'
import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { promisify } from 'node:util'
import t from 'tap'
import { startApp } from '../../support/app.ts'
import { sql } from '../../support/database.ts'
import { storePlants } from '../../support/plants.ts'
import { asShipped, withoutHooks } from '../../support/program.ts'

const run = promisify(execFile)
const packages = join(import.meta.dirname, '../node_modules')
const { app, as, listen, url } = await startApp(t)
const alice = await as('alice')
const address = await listen()
// Await these commands before the first test. During an `await` between two tests, tap may end the file.
const succeeds = (...command: [string, ...string[]]) =>
  run(command[0], command.slice(1)).then(() => true, () => false)
const hasPython = await succeeds('python3', '--version')
const hasJava = await succeeds('java', '--version')

type Fault = '429' | '503' | '502' | 'lost'
/** What happens to the next requests to the proxy. Later requests reach the service. */
let faults: Fault[] = []

const proxy = createServer((incoming, response) => {
  const fault = faults.shift()
  if (fault === '429' || fault === '503') {
    return response.writeHead(Number(fault), { 'content-type': 'application/json', 'retry-after': '1' })
      .end(JSON.stringify({ error: fault === '429' ? 42901 : 50302, message: 'Later.' }))
  }
  forward(incoming, response, fault).catch(() => response.destroy())
}).listen(0, '127.0.0.1')
await once(proxy, 'listening')
t.teardown(() => { proxy.close().closeAllConnections() })

/** Sends the request to the service. Then the client gets no response with `lost`, and HTML with `502`. */
async function forward (incoming: IncomingMessage, response: ServerResponse, fault?: Fault): Promise<void> {
  const { method, headers } = incoming
  const outgoing = request(new URL(incoming.url as string, address), { method, headers })
  outgoing.end(await buffer(incoming))
  const [received] = await once(outgoing, 'response') as [IncomingMessage]
  const body = await buffer(received)
  if (fault === 'lost') incoming.socket.destroy()
  else if (fault === '502') {
    response.writeHead(502, { 'content-type': 'text/html' }).end('<h1>502 Bad Gateway</h1>')
  } else response.writeHead(received.statusCode as number, received.rawHeaders).end(body)
}

const behindFaults = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`
const environment = (user: typeof alice, BASE = behindFaults) =>
  ({ ...process.env, BASE, TOKEN: user.authorization.replace('Bearer ', '') })

const { info, tags } = (await app.inject('/openapi.json')).json()
const sections = [{ name: 'Introduction', description: info.description }, ...tags]
const samples: Array<{ section: string, language: string, code: string }> = sections.flatMap(
  ({ name, description }: { name: string, description: string }) =>
    [...description.matchAll(/```(\w+)\n(.*?)```/gs)].map(([, language = '', code = '']) =>
      ({ section: name, language, code })))
const codeOf = (section: string, language: string) =>
  samples.find((sample) => sample.section === section && sample.language === language)?.code as string

/** Runs a sample. Resolves to its exit code and all that it prints. */
async function runSample (language: string, code: string, env = environment(alice), cwd?: string) {
  // Save the TypeScript in this folder, so that Node can resolve the imports of the sample.
  const file = join(import.meta.dirname, `sample-${process.pid}.mts`)
  const [name = '', ...args] = {
    sh: ['sh', '-c', code], python: ['python3', '-c', code], ts: ['env', ...asShipped, process.execPath, file]
  }[language] as string[]
  if (language === 'ts') await writeFile(file, code)
  try {
    const { stdout, stderr } = await run(name, args, { env, cwd })
    return { exit: 0, stdout, text: stdout + stderr }
  } catch (error) {
    const { code: exit, stdout, stderr } = error as { code: number, stdout: string, stderr: string }
    return { exit, stdout, text: stdout + stderr }
  } finally {
    if (language === 'ts') await rm(file)
  }
}

t.afterEach(() => sql(url, 'delete from plants'))

t.test('the page has these samples, and each succeeds', async (t) => {
  const outputs: Record<string, RegExp> = {
    'Introduction sh': /^{"name":"Fern"}\[{"name":"Fern"}\]$/,
    'Plants ts': /^\d+\n$/,
    'Quick start python': /^{"name":"Fern"}\n\[{"name":"Fern"}\]\n$/,
    'Quick start ts': /^{ name: 'Fern' }\n\[ { name: 'Fern' } \]\n204\n$/,
    'All plants, page by page sh': /^\[\]$/,
    'All plants, page by page python': /^$/,
    'All plants, page by page ts': /^$/,
    'Ids ts': /^200 {"name":"Fern"}\n204 \n$/,
    'Retries python': /^{'id': \d+, 'name': 'Fern'}\n$/,
    'Retries ts': /^\[\n( *{ id: \d+, name: '\w+' },?\n){3}\]\n$/
  }
  const cwd = t.testdir()
  t.strictSame(samples.map(({ section, language }) => `${section} ${language}`), Object.keys(outputs))
  for (const { section, language, code } of samples) {
    if (language === 'python' && !hasPython) continue
    const { exit, stdout } = await runSample(language, code, environment(alice, address), cwd)
    t.equal(exit, 0, section)
    t.match(stdout, outputs[`${section} ${language}`] as RegExp)
  }
  const stored = await sql(url, 'select name from plants order by name')
  t.strictSame([...new Set(stored.map(({ name }) => name))], ['Fern', 'Ivy', 'Monstera'])
})

t.test('no sample takes a failed request for a success', async (t) => {
  const signs: Record<Fault, RegExp> = {
    429: /42901|429/, 503: /50302|503/, 502: /502/, lost: /Empty reply|RemoteDisconnected|fetch failed/
  }
  const cwd = t.testdir()
  for (const { section, language, code } of samples) {
    if ((language === 'python' && !hasPython) || section === 'Retries' || !/plants/.test(code)) continue
    for (const [fault, sign] of Object.entries(signs) as Array<[Fault, RegExp]>) {
      faults = [fault]
      const { exit, text } = await runSample(language, code, environment(alice), cwd)
      t.match(text, sign, `${section} ${language} ${fault}`)
      // The shell goes on after a failed command. The sample for large ids prints statuses.
      const continues = section === 'Introduction' || (section === 'Ids' && fault !== 'lost')
      if (!continues) t.not(exit, 0, `${section} ${language} ${fault}`)
      await sql(url, 'delete from plants')
    }
  }
})

t.test('the samples of retries store each plant once, whatever happens to its requests', async (t) => {
  const expected = { ts: ['Fern', 'Ivy', 'Monstera'], ...hasPython && { python: ['Fern'] } }
  for (const each of [['429'], ['503'], ['502'], ['lost'], ['429', 'lost', '503', '502']] as Fault[][]) {
    for (const [language, names] of Object.entries(expected)) {
      faults = [...each]
      const { exit, text } = await runSample(language, codeOf('Retries', language))
      t.equal(exit, 0, `${each} ${text}`)
      t.strictSame(faults, [])
      const stored = await sql(url, 'select id, name from plants order by name')
      for (const { id, name } of stored) t.match(text, new RegExp(`id'?: ${id},\\s+'?name'?: '${name}'`))
      t.strictSame(stored.map(({ name }) => name), names)
      await sql(url, 'delete from plants')
    }
  }
})

const [createForSure = ''] = codeOf('Retries', 'ts').split('const newId')

t.test('createForSure rejects a taken id, and a request that is wrong', async (t) => {
  const create = (id: string) =>
    runSample('ts', `${createForSure}await createForSure({ id: ${id}, name: 'Ivy' })`)
  await alice.create({ id: 42, name: 'Fern' })
  faults = ['lost']
  t.match(await create('42'), { exit: 1, text: /400: You already have a plant with this id/ })
  t.match(await create('1.5'), { exit: 1, text: /400: id must be an integer/ })
  t.same((await alice.list()).json(), [{ name: 'Fern' }])
})

t.test('with USER_RATE, createForSure stores 300 plants that are created at once', async (t) => {
  const limited = await startApp(t, { DATABASE_URL: url, USER_RATE: '100/s' })
  const creates =
    'await Promise.all(Array.from({ length: 300 }, (_, id) => createForSure({ id, name: "n" })))'
  const env = environment(alice, await limited.listen())
  t.match(await runSample('ts', createForSure + creates, env), { exit: 0, text: '' })
  t.match(limited.log.join(''), '"error":42901')
  t.equal((await alice.list()).json().length, 300)
})

t.test('each sample of pages reads all plants, page by page', async (t) => {
  const names = Array.from({ length: 45 }, (_, id) => `plant ${id}`)
  await storePlants(url, 'bob', names.map((name, id) => ({ id: BigInt(id), name })))
  const env = environment(await as('bob'))
  const section = 'All plants, page by page'
  const pages = (await runSample('sh', codeOf(section, 'sh'), env, t.testdir())).stdout
  const each = pages.replaceAll('][', ']\n[').split('\n').map((page) => JSON.parse(page))
  t.strictSame(each.map(({ length }) => length), [20, 20, 5])
  t.strictSame(each.flat().map(({ name }) => name), names)
  for (const language of hasPython ? ['ts', 'python'] : ['ts']) {
    t.equal((await runSample(language, codeOf(section, language), env)).stdout, names.join('\n') + '\n')
  }
})

// Java's URI drops the last segment of the path when it resolves a reference that is only a query.
const needsJava = { skip: !hasJava && 'there is no Java' }
t.test('a Java program follows Link with URI.resolve', needsJava, async (t) => {
  const plants = Array.from({ length: 250 }, (_, id) => ({ id: BigInt(id), name: `plant ${id}` }))
  await storePlants(url, 'bob', plants)
  const { BASE, TOKEN } = environment(await as('bob'), address)
  const { stdout } = await run('java', [join(import.meta.dirname, 'Pages.java'), BASE, TOKEN])
  t.equal(stdout, '250 plants in 3 pages\n')
})

t.test('the remedy for openapi-fetch sends large ids exactly', async (t) => {
  const [start = ''] = codeOf('Ids', 'ts').split('const plant')
  const { description } = tags.find(({ name }: { name: string }) => name === 'Ids')
  const [, remedy = ''] = /openapi-fetch: `createClient<paths>\({ baseUrl, (.*?) }\)`/.exec(description) ?? []
  const { text } = await runSample('ts', `import createClient from 'openapi-fetch'\n${start}
    const client = createClient<any>({ baseUrl: process.env.BASE, headers, ${remedy} })
    console.log(await client.POST('/plants', { body: { id: 9007199254740993n, name: 'Fern' } }))`)
  t.match(text, "data: { name: 'Fern' }")
  t.equal((await alice.delete('9007199254740992')).statusCode, 404)
  t.equal((await alice.delete('9007199254740993')).statusCode, 204)
})

t.test('the samples that are called TypeScript compile with --strict', async (t) => {
  const folder = t.testdir({ node_modules: t.fixture('symlink', packages) })
  const files = samples.filter(({ language }) => language === 'ts').map(({ code }, index) =>
    [join(folder, `sample-${index}.mts`), code] as const)
  for (const [file, code] of files) await writeFile(file, code)
  // Without the library DOM, other types of `fetch` apply.
  for (const libraries of [['--lib', 'es2024'], ['--lib', 'es2024,dom,dom.iterable']]) {
    const compiled = run('env', [...withoutHooks, join(packages, '.bin/tsc'), '--ignoreConfig', '--noEmit',
      '--strict', '--target', 'es2024', '--module', 'nodenext', '--types', 'node', '--skipLibCheck',
      ...libraries, ...files.map(([file]) => file)])
    await t.resolves(compiled.catch(({ stdout }) => { throw new Error(stdout) }), libraries.join())
  }
})

t.test('examples/plants.ts and the requests of examples/plants.http succeed', async (t) => {
  const env = environment(alice, address)
  t.equal((await run('env', [...asShipped, process.execPath, 'examples/plants.ts'], { env })).stdout, [
    "created { name: 'Monstera deliciosa', tag: 'tropical' }",
    "yours [ { name: 'Monstera deliciosa', tag: 'tropical' } ]",
    'left []\n'
  ].join('\n'))
  const file = await readFile('examples/plants.http', 'utf8')
  const requests = file.replaceAll('{{base}}', address).replaceAll('{{token}}', env.TOKEN).split(/^###.*\n/m)
  const statuses: number[] = []
  for (const each of requests.slice(1)) {
    const [, method, url = '', lines = '', body] =
      /^(\S+) (\S+)\n(.*?)(?:\n\n(.*))?$/s.exec(each.trim()) ?? []
    const headers = lines.split('\n').map((line) => line.split(': ') as [string, string])
    statuses.push((await fetch(url, { method, body, headers })).status)
  }
  t.same(statuses, [200, 200, 204])
})
