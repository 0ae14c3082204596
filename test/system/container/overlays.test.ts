// Checks the combinations of compose files that docs/operating.md and docs/scaling.md recommend.
import t from 'tap'
import { openProject, settings } from './support.ts'

const combinations = [
  [], ['backup'], ['external'], ['observability'], ['pgbouncer'], ['citus'], ['backup', 'failover'],
  ['backup', 'failover', 'machines'], ['backup', 'pgbouncer'],
  ...[[], ['backup'], ['external'], ['pgbouncer'], ['citus'], ['backup', 'failover']]
    .map((others) => ['rolling', 'tls', ...others])
]
/** The service `migrate` and the tools go around the pool. */
const direct = 'postgres://database/plant_store'

const { compose, env } = await openProject(t)
const base = env.COMPOSE_FILE as string
/** Selects overlays and the settings that they ask for. */
function select (overlays: string[]) {
  const files = overlays.map((overlay) => base.replace('docker-compose.yml', `deploy/compose/${overlay}.yml`))
  const chosen = Object.assign({}, ...overlays.map((overlay) => settings[overlay]))
  for (const values of Object.values(settings)) for (const name in values) delete env[name]
  Object.assign(env, chosen, { COMPOSE_FILE: [base, ...files].join(':') })
  return chosen as Record<string, string>
}

interface Service { name: string, text: string, runs: boolean, url?: string, needs: string[] }
/** Returns the services that Compose makes of the files. */
async function services (): Promise<Service[]> {
  const config = await compose('--profile', 'tools', 'config')
  const [, section = ''] = /^services:\n(.*?)^\S/ms.exec(`${config}\nend`) ?? []
  return section.split(/^ {2}(?=\S)/m).filter((text) => text !== '').map((text) => {
    const [name = ''] = text.split(':', 1)
    const [, dependencies = ''] = /^ {4}depends_on:\n((?: {6}.*\n)*)/m.exec(text) ?? []
    const needs = [...dependencies.matchAll(/^ {6}(?:- )?([\w-]+):?$/gm)].map(([, need = '']) => need)
    const url = /^ {6}DATABASE_URL: (.*)$/m.exec(text)?.[1]
    return { name, text, runs: !/^ {4}scale: 0$|^ {6}replicas: 0$/m.test(text), url, needs }
  })
}

for (const overlays of combinations) {
  t.test(`every service reaches the database with ${overlays.join(', ') || 'no overlay'}`, async (t) => {
    const { DATABASE_URL = direct } = select(overlays)
    const all = await services()
    const running = all.filter(({ runs }) => runs)
    const names = running.map(({ name }) => name)
    const urls = Object.fromEntries(running.map(({ name, url }) => [name, url]).filter(([, url]) => url))
    const instances = overlays.includes('rolling') ? ['-1', '-2', '-3'] : ['']
    t.strictSame(names.filter((name) => /^plant-store/.test(name)), instances.map((it) => `plant-store${it}`))
    for (const [name, url] of Object.entries(urls)) {
      const isDirect = overlays.includes('pgbouncer') && ['migrate', 'tools'].includes(name)
      t.equal(url, isDirect ? direct : DATABASE_URL, name)
    }
    t.ok('tools' in urls)
    const hosts = /\/\/([^/]*)\//.exec(DATABASE_URL)?.[1]?.split(',') ?? []
    if (!overlays.includes('external')) for (const host of hosts) t.ok(names.includes(host), host)
    // Compose does not wait for the included database when another one replaces it.
    const replaced = /citus|external/.test(overlays.join()) ? ['database'] : []
    for (const { name, needs } of running) {
      t.strictSame(needs.filter((need) => ![...names, ...replaced].includes(need)), [], name)
    }
    // Without an init process, a program ignores the signals that it does not handle, and keeps zombies.
    const ours = running.filter(({ name }) => /plant-store|database|backup|etcd/.test(name))
    for (const { name, text } of ours) t.match(text, /^ {4}init: true$/m, name)
  })
}
