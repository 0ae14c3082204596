// Runs Prometheus on loopback with the files of deploy/observability.
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { freePort } from '../../support/free-port.ts'
import type { Scope } from '../../support/program.ts'

const execute = promisify(execFile)
const deploy = join(import.meta.dirname, '../../../deploy/observability')

/** The factor by which alerts fire faster than with the shipped rules. */
const speed = 60

/**
 * Returns an empty string if prometheus and promtool are on the PATH. Otherwise downloads Debian's package
 * and returns the folder of the package's programs, or undefined if the download fails.
 */
export async function findPrometheus (): Promise<string | undefined> {
  const folder = join(tmpdir(), 'plant-store-prometheus')
  await mkdir(folder, { recursive: true })
  // Unpack the package instead of installing it, so that nothing outside the folder changes.
  const find = `which prometheus promtool > /dev/null && exit
    [ -x usr/bin/promtool ] || (apt-get download -qq prometheus && dpkg -x prometheus_*.deb .)
    printf '%s' "$PWD/usr/bin/"`
  return execute('bash', ['-ec', find], { cwd: folder }).then(({ stdout }) => stdout, () => undefined)
}

export async function promtool (programs: string, args: string[], input = '') {
  const running = execute(`${programs}promtool`, args, { cwd: deploy })
  running.child.stdin?.end(input)
  await running
}

const faster = (text: string) => text
  .replaceAll(/\[(\d+)([mh])\]/g,
    (_, count, unit) => `[${Number(count) * (unit === 'h' ? 3600 : 60) / speed}s]`)
  .replaceAll(/for: (\d+)m/g, (_, count) => `for: ${Number(count) * 60 / speed}s`)

export async function startPrometheus (scope: Scope, programs: string, target: string) {
  const folder = await mkdtemp(join(tmpdir(), 'plant-store-prometheus-'))
  await cp(deploy, folder, { recursive: true })
  await writeFile(join(folder, 'alerts.yml'), faster(await readFile(join(deploy, 'alerts.yml'), 'utf8')))
  await writeFile(join(folder, 'prometheus.yml'), `
global: { scrape_interval: 500ms, evaluation_interval: 500ms }
rule_files: [alerts.yml]
scrape_configs: [{ job_name: plant-store, static_configs: [{ targets: ["${new URL(target).host}"] }] }]
`)
  const port = await freePort()
  const child = spawn(`${programs}prometheus`, [
    `--config.file=${folder}/prometheus.yml`, `--storage.tsdb.path=${folder}/data`,
    `--web.listen-address=127.0.0.1:${port}`
  ], { stdio: ['ignore', 'ignore', 'pipe'] })
  const exited = once(child, 'exit')
  scope.teardown(async () => {
    child.kill('SIGTERM')
    await exited
    await rm(folder, { recursive: true })
  })
  const ready = new Promise<void>((resolve) => child.stderr.on('data', (piece) => {
    if (String(piece).includes('Server is ready to receive web requests')) resolve()
  }))
  await Promise.race([ready, exited.then(() => { throw new Error('Prometheus did not start') })])
  const address = `http://127.0.0.1:${port}`
  async function get (path: string) {
    const { status, data, error } = JSON.parse(await (await fetch(address + path)).text())
    if (status !== 'success') throw new Error(error)
    return data
  }
  return {
    /** Returns the current values of an expression, one per series. */
    query: async (expression: string): Promise<unknown[]> =>
      (await get(`/api/v1/query?query=${encodeURIComponent(expression)}`)).result,
    async firing (): Promise<string[]> {
      type Alert = { labels: { alertname: string }, state: string }
      const { alerts }: { alerts: Alert[] } = await get('/api/v1/alerts')
      return alerts.filter(({ state }) => state === 'firing').map(({ labels }) => labels.alertname)
    }
  }
}
