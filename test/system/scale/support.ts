// Helpers for the tests that run several instances, with Compose overlays for the databases.
import { chmod, mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Test } from 'tap'
import { runbook } from '../container/operator.ts'
import {
  buildDatabaseImage, buildImage, openProject, run, settings, urlOf, waitForStatus
} from '../container/support.ts'

/** Returns false if all images are available. Otherwise returns the reason to skip the test. */
export function missing (...images: string[]): Promise<string | false> {
  const find = (image: string) => run('image', 'inspect', image).catch(() => run('pull', '--quiet', image))
  return Promise.all(images.map(find)).then(() => false as const, () => `no image of ${images.join(', ')}`)
}

let imagesBuilt: Promise<unknown> | undefined

/**
 * Starts the databases of Compose overlays, and the instances of rolling.yml, or two instances. Waits until
 * the two are ready.
 */
export async function startProject (t: Test, overlays: string[], env: Record<string, string> = {}) {
  await (imagesBuilt ??= Promise.all([buildImage(), buildDatabaseImage()]))
  const project = await openProject(t, ...overlays)
  const BACKUPS = join(t.testdir(), 'backups')
  await mkdir(BACKUPS)
  // PostgreSQL's user writes there.
  await chmod(BACKUPS, 0o777)
  Object.assign(project.env, { BACKUPS }, ...overlays.map((overlay) => settings[overlay]), env)
  const isRolling = overlays.includes('rolling')
  await project.compose('up', '--detach', '--no-build', ...isRolling ? [] : ['--scale', 'plant-store=2'])
  if (overlays.includes('backup')) {
    await project.sh(runbook['Back up']?.[0]?.trim().split('\n').at(-1) as string)
  }
  if (isRolling) return { ...project, addresses: [], BACKUPS }
  const instances = await project.containers('plant-store')
  const addresses = await Promise.all(instances.map(urlOf))
  for (const address of addresses) await waitForStatus(`${address}/readyz`, 200)
  return { ...project, addresses, BACKUPS }
}
