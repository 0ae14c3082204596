// Helpers for the tests that run several instances, with Compose overlays for the databases.
import { setTimeout as delay } from 'node:timers/promises'
import type { Test } from 'tap'
import { buildImage, openProject, run, urlOf, waitForStatus } from '../container/support.ts'

export type Project = Awaited<ReturnType<typeof startProject>>

/** Returns false if all images are available. Otherwise returns the reason to skip the test. */
export async function missing (...images: string[]): Promise<string | false> {
  for (const image of images) {
    try {
      await run('image', 'inspect', image).catch(() => run('pull', '--quiet', image))
    } catch {
      return `there is no image ${image}`
    }
  }
  return false
}

let imageBuilt: Promise<void> | undefined

/** Starts two instances and the databases of a Compose overlay. Waits until both instances are ready. */
export async function startProject (t: Test, overlay: string, env: Record<string, string> = {}) {
  imageBuilt ??= buildImage()
  await imageBuilt
  const project = await openProject(t, overlay)
  Object.assign(project.env, env)
  await project.compose('up', '--detach', '--no-build', '--scale', 'plant-store=2')
  const instances = await project.containers('plant-store')
  const addresses = await Promise.all(instances.map(urlOf))
  for (const address of addresses) await waitForStatus(`${address}/readyz`, 200)

  return { ...project, addresses }
}

/** Kills the primary `one` when its standby `two` lacks the writes of the last `ms` milliseconds. */
export async function killAhead ({ container, network }: Project, ms: number) {
  const [one, two] = [await container('one'), await container('two')]
  await run('network', 'disconnect', network, two)
  await delay(ms)
  await run('kill', one)
  await run('network', 'connect', '--alias=two', network, two)
}
