// Runs the code samples of the OpenAPI document.
import { execFile } from 'node:child_process'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { Test } from 'tap'
import { startApp } from '../../support/app.ts'
import { asShipped } from '../../support/program.ts'

export const run = promisify(execFile)

/** The samples run in `folder`, so that Node can resolve their imports. */
export async function openSamples (t: Test, folder: string) {
  const { app, as, listen, url } = await startApp(t)
  const alice = await as('alice')
  const env = { ...process.env, BASE: await listen(), TOKEN: alice.authorization.replace('Bearer ', '') }
  const { tags } = (await app.inject('/openapi.json')).json()

  const codeOf = (section: string, language: string): string[] =>
    [...tags.find(({ name }: { name: string }) => name === section).description.matchAll(
      new RegExp(`\`\`\`${language}\n(.*?)\`\`\``, 'gs')
    )].map(([, code]) => code)

  async function script (code: string, environment = env) {
    const file = join(folder, `sample-${process.pid}.mts`)
    t.teardown(() => rm(file, { force: true }))
    await writeFile(file, code)
    return run('env', [...asShipped, process.execPath, file], { env: environment })
  }
  return { as, url, alice, env, codeOf, script }
}
