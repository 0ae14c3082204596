// Prints a CycloneDX SBOM of the packages in the image. Usage: node release/sbom.ts
// Runs `npm sbom` on a copy of the project without `devDependencies`. The option --omit=dev would leave out
// packages of the image that a development dependency also needs.
import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'

const lock = JSON.parse(await readFile('package-lock.json', 'utf8'))
delete lock.packages[''].devDependencies
const folder = await mkdtemp(join(tmpdir(), 'sbom-'))
try {
  await writeFile(join(folder, 'package.json'), JSON.stringify(lock.packages['']))
  await writeFile(join(folder, 'package-lock.json'), JSON.stringify(lock))
  const command = ['sbom', '--package-lock-only', '--sbom-format=cyclonedx']
  const { stdout } = await promisify(execFile)('npm', command, { cwd: folder, maxBuffer: 2 ** 24 })
  process.stdout.write(stdout)
} finally {
  await rm(folder, { recursive: true })
}
