// Puts load on the service for a minute, with a database outage. Then draws the dashboard of this minute.
// Usage: node test/system/observability/draw.ts docs/dashboard.svg
// Without a path, writes the picture to the folder for temporary files.
import { writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { createClient } from '../faults/client.ts'
import { createUsers, startPostgres } from '../faults/postgres.ts'
import { unmeasured } from '../../support/program.ts'
import {
  filledIn, findPrometheus, readPanels, startPrometheus, type Panel, type Series
} from './prometheus.ts'

const [target = join(tmpdir(), 'dashboard.svg')] = process.argv.slice(2)
const seconds = 60
const [columns, width, height] = [6, 250, 130]
const colors = ['#2da44e', '#0969da', '#bf8700', '#cf222e', '#8250df', '#6e7781']

const formats: Record<string, (value: number) => string> = {
  reqps: (value) => `${round(value)} a second`,
  ops: (value) => `${round(value)} a second`,
  percentunit: (value) => `${round(value * 100)} %`,
  bytes: (value) => `${round(value / 2 ** 20)} MiB`,
  s: (value) => `${round(value * 1000)} ms`
}

await using stack = new AsyncDisposableStack()
const scope = { teardown: (work: () => unknown) => stack.defer(async () => { await work() }) }
const postgres = await startPostgres(scope)
const users = await createUsers(postgres.url, ['alice', 'bob', 'carol'])
const service = await unmeasured.serve(scope, { DATABASE_URL: postgres.url, METRICS_PORT: '0' })
const prometheus = await startPrometheus(scope, await findPrometheus() as string,
  String(service.log.find(({ msg }) => msg === 'metrics')?.url))

const began = Date.now() / 1000
const over = AbortSignal.timeout(seconds * 1000)
const work = users.flatMap((token) => Array.from({ length: 4 }, async (_, index) => {
  const client = createClient(service.address, token)
  for (let id = index; !over.aborted; id += 4) {
    await client.create({ id, name: 'Monstera deliciosa' })
    await client.list('?limit=20')
    await client.delete(id)
    await delay(Math.random() * 20)
  }
  client.close()
}))
await delay(seconds * 500)
await postgres.kill()
await delay(seconds * 100)
await postgres.start()
await Promise.all(work)

const drawn = []
for (const [index, panel] of (await readPanels()).entries()) {
  const series = (await Promise.all(panel.targets.map(({ expr }) =>
    prometheus.range(filledIn(expr), began, began + seconds)))).flat()
  drawn.push(draw(panel, series, index % columns * width, Math.floor(index / columns) * height))
}
const rows = Math.ceil(drawn.length / columns)
writeFileSync(target, `<svg xmlns="http://www.w3.org/2000/svg"
  viewBox="0 0 ${columns * width} ${rows * height}" role="img" aria-label="Dashboard">
<style>
  text { font: 11px system-ui, sans-serif; fill: #57606a } .title { font-weight: 600; fill: #24292f }
</style>
<rect width="100%" height="100%" fill="#ffffff"/>
${drawn.join('\n')}
</svg>
`)
console.log(target)

function draw ({ title, fieldConfig }: Panel, series: Series[], x: number, y: number): string {
  const values = series.flatMap(({ values }) => values.map(([, value]) => Number(value)))
    .filter(Number.isFinite)
  const maximum = Math.max(...values, 0)
  const [left, top, wide, high] = [x + 10, y + 34, width - 24, height - 48]
  const lines = series.map(({ values }, index) => {
    const points = values.filter(([, value]) => Number.isFinite(Number(value))).map(([time, value]) => {
      const x = left + (time - began) / seconds * wide
      const y = top + high - Number(value) / (maximum || 1) * high
      return `${x.toFixed(1)},${y.toFixed(1)}`
    })
    const color = colors[index % colors.length]
    return `<polyline points="${points.join(' ')}" fill="none" stroke="${color}" stroke-width="1.5"/>`
  })
  const format = formats[fieldConfig.defaults.unit] ?? round
  return `<text class="title" x="${left}" y="${y + 16}">${title.replaceAll('&', '&amp;')}</text>
<text x="${left}" y="${y + 29}">at most ${format(maximum)}</text>
<path d="M${left} ${top + high}h${wide}" stroke="#d0d7de"/>
${lines.join('\n')}`
}

function round (value: number): string {
  return value >= 1e6 ? `${(value / 1e6).toFixed(1)}M` : Number(value.toPrecision(2)).toString()
}
