import type { Test } from 'tap'

export const noPlant = [40010, 'The body must be a JSON object.'] as const

/** A response of `app.inject` or of `exchange`. */
interface Response { statusCode?: number, status?: number, headers: Record<string, unknown>, body: string }

/** Asserts that a response is exactly the given error. */
export function isError (
  t: Test, response: Response | undefined, number: number, message: string, title = ''
): void {
  const { statusCode, status = statusCode, headers, body }: Response =
    response ?? { headers: {}, body: 'no response' }
  t.strictSame([status, headers['content-type'], body],
    [Math.floor(number / 100), 'application/json', JSON.stringify({ error: number, message })],
    `${title} ${number}`.trim())
}
