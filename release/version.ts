// Copies the version of package.json into the other files that contain it. `npm version` runs this script.
import { readFile, writeFile } from 'node:fs/promises'

/** The pattern that finds the version in each file. */
export const places = {
  Dockerfile: /(?<=^ARG VERSION=).*/m,
  'deploy/service.yml': /(?<=localhost\/plant-store:)[^}]+/,
  'deploy/kubernetes/production/kustomization.yaml': /(?<=newTag: )\S+/
}

if (import.meta.main) {
  const { version } = JSON.parse(await readFile('package.json', 'utf8'))
  for (const [file, place] of Object.entries(places)) {
    await writeFile(file, (await readFile(file, 'utf8')).replace(place, version))
  }
}
