// Prints a CycloneDX SBOM of the packages in the image, and of Scalar. Usage: node release/sbom.ts
// Runs `npm sbom` on a copy of the lock file that has only these packages. The options --omit=dev and
// --omit=optional would leave out packages of the image that an omitted dependency also needs.
import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'

const lock = JSON.parse(await readFile('package-lock.json', 'utf8'))
// The image has the script of this package, without the packages that it depends on.
const scalar = '@scalar/fastify-api-reference'
const { version, integrity, license } = lock.packages[`node_modules/${scalar}`]
lock.packages[`node_modules/${scalar}`] = { version, integrity, license }
lock.packages[''].dependencies[scalar] = version
delete lock.packages[''].devDependencies
delete lock.packages[''].optionalDependencies
for (const [path, { dev, optional, devOptional }] of Object.entries<Record<string, boolean>>(lock.packages)) {
  if (dev || optional || devOptional) delete lock.packages[path]
}
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
