// Starts two instances of the service on the databases of a compose file.
import type { Test } from 'tap'
import { buildImage, openProject, run, urlOf, waitForStatus } from '../container/support.ts'

export type Project = Awaited<ReturnType<typeof startProject>>

/** Why to skip tests: one of their images cannot be pulled. False when all images are here. */
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

/** Two ready instances on the databases of a file in deploy/compose. */
export async function startProject (t: Test, overlay: string, env: Record<string, string> = {}) {
  imageBuilt ??= buildImage()
  await imageBuilt
  const project = await openProject(t, overlay)
  Object.assign(project.env, env)
  await project.compose('up', '--detach', '--no-build', '--scale', 'plant-store=2')
  const instances = await project.containers('plant-store')
  const addresses = await Promise.all(instances.map(urlOf))
  for (const address of addresses) await waitForStatus(`${address}/readyz`, 200)

  return {
    ...project,
    addresses,

    /** A connection from this machine. The addresses of containers are reachable on Linux alone. */
    async databaseUrl (service: string, user = 'plant_store'): Promise<string> {
      const format = `{{(index .NetworkSettings.Networks "${project.network}").IPAddress}}`
      const address = await run('inspect', `--format=${format}`, await project.container(service))
      return `postgres://${user}:plants@${address}/plant_store`
    }
  }
}
