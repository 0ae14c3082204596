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
  t.strictSame([status, response.headers['content-type'], parse(response.body)],
    [Math.floor(number / 100), 'application/json', { error: number, message }], `${title} ${number}`.trim())
}

function parse (text: string): object {
  try {
    return JSON.parse(text)
  } catch {
    return { text }
  }
}
