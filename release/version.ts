// Copies the version of package.json into the other files that name it. The command npm version runs this.
import { readFile, writeFile } from 'node:fs/promises'

/** Where each file names the version. */
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
