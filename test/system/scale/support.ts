// Helpers for the tests that run several instances, with Compose overlays for the databases.
import type { Test } from 'tap'
import { buildImage, openProject, run, urlOf, waitForStatus } from '../container/support.ts'

export type Project = Awaited<ReturnType<typeof startProject>>

/** Returns false if all images are available. Otherwise returns the reason to skip the test. */
export function missing (...images: string[]): Promise<string | false> {
  const find = (image: string) => run('image', 'inspect', image).catch(() => run('pull', '--quiet', image))
  return Promise.all(images.map(find)).then(() => false as const, () => `no image of ${images.join(', ')}`)
}

let imageBuilt: Promise<void> | undefined

/** Starts two instances and the databases of a Compose overlay. Waits until both instances are ready. */
export async function startProject (t: Test, overlay: string, env: Record<string, string> = {}) {
  await (imageBuilt ??= buildImage())
  const project = await openProject(t, overlay)
  Object.assign(project.env, env)
  await project.compose('up', '--detach', '--no-build', '--scale', 'plant-store=2')
  const instances = await project.containers('plant-store')
  const addresses = await Promise.all(instances.map(urlOf))
  for (const address of addresses) await waitForStatus(`${address}/readyz`, 200)
  // From then on, commits wait for the standby.
  if (overlay === 'failover') await project.healthy('two')
  return { ...project, addresses }
}
