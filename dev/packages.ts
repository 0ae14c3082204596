// Installs the packages that only some npm scripts need: node dev/packages.ts <folder>...
import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const root = join(import.meta.dirname, '..')

/** Runs `npm ci` in the folder, unless the packages of its lock file are already installed. */
export function installPackages (folder: string): void {
  const lock = readFileSync(join(root, folder, 'package-lock.json'), 'utf8')
  // npm has no quick way to compare a lock file with the installed packages. So keep a copy of the lock file.
  const installed = join(root, folder, 'node_modules/.installed-lock.json')
  try {
    if (readFileSync(installed, 'utf8') === lock) return
  } catch {
    // The packages have never been installed.
  }
  console.log(`# installing the packages of ${folder}/, which only some scripts need`)
  const { status } = spawnSync('npm', ['ci', '--no-audit', '--no-fund', '--loglevel=error'],
    { cwd: join(root, folder), stdio: 'inherit', shell: process.platform === 'win32' })
  if (status !== 0) throw new Error(`npm ci failed in ${folder}`)
  writeFileSync(installed, lock)
}

if (import.meta.main) for (const folder of process.argv.slice(2)) installPackages(folder)
