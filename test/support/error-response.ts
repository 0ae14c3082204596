import type { Test } from 'tap'
import type { RawResponse } from './raw.ts'

export const noPlant = [40010, 'The body must be a JSON object with id, name, tag (optional).'] as const

interface InjectResponse {
  statusCode: number
  headers: Record<string, unknown>
  body: string
}

/** Asserts that a response is exactly the given error. */
export function isError (
  t: Test, response: InjectResponse | RawResponse | undefined, number: number, message: string, title = ''
): void {
  if (response === undefined) {
    t.fail(`no response: ${title}`)
    return
  }
  const status = 'statusCode' in response ? response.statusCode : response.status
  const body = JSON.stringify({ error: number, message })
  t.strictSame([status, response.headers['content-type'], response.body],
    [Math.floor(number / 100), 'application/json', body], `${title} ${number}`.trim())
}
