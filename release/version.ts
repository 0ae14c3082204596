// Copies the version from package.json into the files that `places` lists. `npm version` runs this script.
import { readFile, writeFile } from 'node:fs/promises'

/** Maps a file to the pattern that matches the version in this file. */
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
