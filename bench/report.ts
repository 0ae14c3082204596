// Writes docs/performance.md and its plot. A benchmark run replaces only the sections that the run measured.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { service } from './contenders.ts'

const docs = join(import.meta.dirname, '../docs')

export function writeSection (title: string, body: string) {
  console.log(`\n## ${title}\n\n${body}\n`)
  const file = join(docs, 'performance.md')
  const sections = readFileSync(file, 'utf8').split(/^(?=## )/m)
  const index = sections.findIndex((section) => section.startsWith(`## ${title}\n`))
  sections.splice(index === -1 ? sections.length : index, 1, `## ${title}\n\n${body}`)
  writeFileSync(file, sections.map((section) => section.trimEnd()).join('\n\n') + '\n')
}

export interface Bar { title: string, value: number, label: string }

export function writePlot (title: string, groups: Map<string, Bar[]>) {
  const [left, width, bar, gap] = [270, 680, 18, 34]
  const longest = Math.max(...[...groups.values()].flat().map(({ value }) => value))
  let y = 40
  const drawn = [...groups].flatMap(([group, bars]) => {
    y += gap
    const heading = y - 8
    const rows = bars.map(({ title, value, label }) => {
      const length = value / longest * (width - 120)
      const [kind, base] = [title.startsWith(service.title) ? 'own' : 'peer', y + 13]
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
