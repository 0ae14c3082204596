// Shows samples as a table and a plot, and writes the measured sections of docs/performance.md.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { round, table } from '../test/support/table.ts'
import type { Load } from './load.ts'
import type { Sample } from './requests.ts'
import { median, spread } from './statistics.ts'

const docs = join(import.meta.dirname, '../docs')

interface Measure {
  title: string
  share: Sample['share']
  isRate?: boolean
  figure: (sample: Sample) => number
}

const perSecond = (sample: Sample) => sample.perSecond
const processor = ({ own, postgres }: Sample) => own + postgres
const measures: Measure[] = [
  { title: 'requests/s', share: 'full', isRate: true, figure: perSecond },
  { title: 'processor µs', share: 'full', figure: processor },
  { title: 'third, median ms', share: 'third', figure: ({ p50 }) => p50 },
  { title: 'third, p99 ms', share: 'third', figure: ({ p99 }) => p99 }
]

const unique = <T>(values: T[]) => [...new Set(values)]
const titlesOf = (samples: Sample[]) => unique(samples.map(({ title }) => title))
const loadsOf = (samples: Sample[]) => unique(samples.map(({ load }) => load))

function select (samples: Sample[], title: string, load: Load, { share, figure }: Measure): number[] {
  return samples.filter((sample) => sample.title === title && sample.load === load && sample.share === share)
    .map(figure)
}

/** Returns a table with the first contender's figures, and their ratios to the figures of each other. */
export function comparisonTable (samples: Sample[]): string {
  const [first = '', ...others] = titlesOf(samples)
  const rows = measures.flatMap((measure) => loadsOf(samples).map((load) => {
    const own = select(samples, first, load, measure)
    const ratios = others.map((title) => {
      const figures = select(samples, title, load, measure)
      return compare(own.map((figure, index) => figure / (figures[index] ?? NaN)), measure.isRate)
    })
    return [`${measure.title}: ${load}`, spread(own), ...ratios]
  }))
  return table(['', first, ...others], rows)
}

/** Marks ratios with which the other is ahead by more than 2 % in every round. */
function compare (ratios: number[], isRate = false): string {
  const isBehind = ratios.every((ratio) => isRate ? ratio < 0.98 : ratio > 1.02)
  return isBehind ? `**${spread(ratios)}**` : spread(ratios)
}

/** Names the contenders that do not reach the third of the first contender's rate. */
export function describeMissed (samples: Sample[]): string {
  const [first = '', ...others] = titlesOf(samples)
  const rate = (title: string, load: Load) =>
    median(select(samples, title, load, { title: '', share: 'third', figure: perSecond }))
  const missed = others.flatMap((title) => {
    const loads = loadsOf(samples).filter((load) => rate(title, load) < 0.9 * rate(first, load))
      .map((load) => `${load} ${round(rate(title, load))}/s of ${round(rate(first, load))}/s`)
    return loads.length === 0 ? [] : [`${title} (${loads.join(', ')})`]
  })
  return missed.length === 0 ? '' : `Slower than the third of this service's rate: ${missed.join(', ')}.\n\n`
}

/** Replaces the section of docs/performance.md. */
export function writeSection (title: string, body: string) {
  const file = join(docs, 'performance.md')
  const sections = readFileSync(file, 'utf8').split(/^(?=## )/m)
  const index = sections.findIndex((section) => section.startsWith(`## ${title}\n`))
  sections.splice(index === -1 ? sections.length : index, 1, `## ${title}\n\n${body}`)
  writeFileSync(file, sections.map((section) => section.trimEnd()).join('\n\n') + '\n')
}

interface Bar { title: string, value: number, label: string }

/** Returns the rates of each load, as multiples of the yardstick's rate. */
export function rateBars (samples: Sample[], yardstick: string): Map<string, Bar[]> {
  const rates = { title: '', share: 'full', figure: perSecond } as const
  return new Map(loadsOf(samples).map((load) => [load, titlesOf(samples).map((title) => {
    const [own, base] = [title, yardstick].map((each) => select(samples, each, load, rates))
    const value = median((own ?? []).map((rate, index) => rate / (base?.[index] ?? NaN)))
    return { title, value, label: `${value.toFixed(1)} (${round(median(own ?? []))}/s)` }
  })]))
}

/** Writes docs/performance.svg. The first bar of each group is this service's. */
export function writePlot (title: string, groups: Map<string, Bar[]>) {
  const [left, width, bar, gap] = [270, 680, 18, 34]
  const longest = Math.max(...[...groups.values()].flat().map(({ value }) => value))
  let y = 40
  const drawn = [...groups].flatMap(([group, bars]) => {
    y += gap
    const heading = y - 8
    const rows = bars.map(({ title, value, label }, index) => {
      const length = value / longest * (width - 120)
      const [kind, base] = [index === 0 ? 'own' : 'peer', y + 13]
      const row = `<text x="${left - 8}" y="${base}" text-anchor="end">${title}</text>` +
        `<rect class="${kind}" x="${left}" y="${y}" width="${length.toFixed(1)}" height="15" rx="2"/>` +
        `<text x="${(left + length + 6).toFixed(1)}" y="${base}">${label}</text>`
      y += bar
      return row
    })
    return [`<text class="group" x="8" y="${heading}">${group}</text>`, ...rows]
  })
  const size = `viewBox="0 0 ${left + width} ${y + 16}" role="img" aria-label="${title}"`
  writeFileSync(join(docs, 'performance.svg'), `<svg xmlns="http://www.w3.org/2000/svg" ${size}>
<style>
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .heading { font-size: 15px; font-weight: 600 } .group { font-weight: 600 }
  .own { fill: #2da44e } .peer { fill: #8c959f }
  @media (prefers-color-scheme: dark) {
    text { fill: #d1d7e0 } .own { fill: #3fb950 } .peer { fill: #6e7681 }
  }
</style>
<text class="heading" x="8" y="24">${title}</text>
${drawn.join('\n')}
</svg>
`)
}
