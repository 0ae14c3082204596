import { readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import type { Page } from 'playwright-core'

const axe = await readFile(fileURLToPath(import.meta.resolve('axe-core/axe.min.js')), 'utf8')

/** Returns the page's violations of WCAG 2.2, levels A and AA. */
export async function findViolations (page: Page): Promise<string[]> {
  const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']
  const found = await page.evaluate(`(async () => {
    const module = { exports: {} };
    (function (module, exports, define) { ${axe} }).call(window, module, module.exports)
    return (await module.exports.run(document, { runOnly: ${JSON.stringify(tags)} })).violations
  })()`) as Array<{ id: string, nodes: Array<{ html: string, any: Array<{ message: string }> }> }>
  return found.flatMap(({ id, nodes }) => nodes.map(({ html, any }) => `${id}: ${any[0]?.message} ${html}`))
}
