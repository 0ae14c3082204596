// Prints a CycloneDX SBOM of the packages in the image. Usage: node release/sbom.ts
// Runs `npm sbom` on a copy of the lock file that has only these packages. The options --omit=dev and
// --omit=optional would leave out packages of the image that an omitted dependency also needs.
import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'

const lock = JSON.parse(await readFile('package-lock.json', 'utf8'))
// The lock file does not repeat the overrides.
const { overrides } = JSON.parse(await readFile('package.json', 'utf8'))
delete lock.packages[''].devDependencies
delete lock.packages[''].optionalDependencies
for (const [path, { dev, optional, devOptional }] of Object.entries<Record<string, boolean>>(lock.packages)) {
  if (dev || optional || devOptional) delete lock.packages[path]
}
const folder = await mkdtemp(join(tmpdir(), 'sbom-'))
try {
  await writeFile(join(folder, 'package.json'), JSON.stringify({ ...lock.packages[''], overrides }))
  await writeFile(join(folder, 'package-lock.json'), JSON.stringify(lock))
  const command = ['sbom', '--package-lock-only', '--sbom-format=cyclonedx']
  const { stdout } = await promisify(execFile)('npm', command, { cwd: folder, maxBuffer: 2 ** 24 })
  process.stdout.write(stdout)
} finally {
  await rm(folder, { recursive: true })
}
