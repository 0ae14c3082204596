import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createClient as generate } from '@hey-api/openapi-ts'
import type { Test } from 'tap'

export async function generateClient (t: Test, document: string) {
  const folder = await mkdtemp(join(tmpdir(), 'plant-store-client-'))
  t.teardown(() => rm(folder, { recursive: true }))
  await writeFile(join(folder, 'package.json'), '{ "type": "module" }')
  await writeFile(join(folder, 'openapi.json'), document)
  await generate({
    input: join(folder, 'openapi.json'),
    output: { path: join(folder, 'client'), importFileExtension: '.ts' },
    logs: { level: 'silent', file: false },
    plugins: [
      '@hey-api/client-fetch', '@hey-api/typescript', '@hey-api/sdk',
      { name: '@hey-api/transformers', bigInt: true }
    ]
  })
  const operations = await import(join(folder, 'client/index.ts'))
  const { createClient } = await import(join(folder, 'client/client/index.ts'))
  return { folder, operations, createClient }
}

// TypeScript has no type for `JSON.rawJSON` yet (https://github.com/tc39/proposal-json-parse-with-source).
export const { rawJSON } = JSON as unknown as { rawJSON (text: string): unknown }

/** Writes bigints as JSON numbers. The generated client itself would write bigints as strings. */
export const exactIntegers = (body: unknown) =>
  JSON.stringify(body, (_key, value) => typeof value === 'bigint' ? rawJSON(String(value)) : value)
