// Finds a browser for the tests. Unpacks the Chromium that test/system/package.json lists.
import { existsSync } from 'node:fs'
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { launch, type Browser } from './browser.ts'

const candidates: Array<() => Browser | Promise<Browser>> = [
  unpackChromium, () => ({ channel: 'chrome' }), () => ({ channel: 'msedge' }),
  () => ({ executablePath: '/usr/bin/chromium' })
]

export async function findBrowser (): Promise<Browser> {
  const reasons: string[] = []
  for (const candidate of candidates) {
    try {
      const browser = await candidate()
      await (await launch(browser)).close()
      return browser
    } catch (error) {
      reasons.push((error as Error).message)
    }
  }
  throw new Error(reasons.join('\n'))
}

/** Unpacking takes seconds, so later test runs use the unpacked folder. */
async function unpackChromium (): Promise<Browser> {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    throw new Error('npm brings a Chromium for Linux on x64 only.')
  }
  const source = fileURLToPath(new URL('../', import.meta.resolve('@sparticuz/chromium')))
  const { version } = JSON.parse(await readFile(join(source, 'package.json'), 'utf8'))
  const folder = join(import.meta.dirname, '../node_modules/.cache', `chromium-${version}`)
  if (!existsSync(folder)) {
    // Unpack under a temporary name, so that a concurrent test run never uses a half-unpacked folder.
    const partial = `${folder}.${process.pid}`
    await mkdir(partial, { recursive: true })
    const { inflate } = await import('@sparticuz/chromium')
    // The package can unpack only into TMPDIR, which test/run.ts has set for all temporary files.
    const { TMPDIR } = process.env
    process.env.TMPDIR = partial
    try {
      const archives = ['chromium.br', 'fonts.tar.br', 'al2023.tar.br']
      await Promise.all(archives.map((name) => inflate(join(source, 'bin', name))))
    } finally {
      process.env.TMPDIR = TMPDIR
    }
    // Replace the package's fonts.conf, which names a folder that does not exist.
    await writeFile(join(partial, 'fonts/fonts.conf'),
      '<fontconfig><dir prefix="relative">fonts</dir></fontconfig>\n')
    await rename(partial, folder).catch(() => rm(partial, { recursive: true }))
  }
  return {
    executablePath: join(folder, 'chromium'),
    env: { LD_LIBRARY_PATH: join(folder, 'al2023/lib'), FONTCONFIG_PATH: join(folder, 'fonts') }
  }
}
