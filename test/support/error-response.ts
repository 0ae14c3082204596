import type { TObject } from '@sinclair/typebox'
import type { Test } from 'tap'
import { NewPlantSchema } from '../../src/plants/plant.ts'

const { properties, required = [] }: TObject = NewPlantSchema
const fields = Object.keys(properties).map((name) => required.includes(name) ? name : `${name} (optional)`)
export const noPlant =
  [40010, `The body must be a JSON object: its fields are ${fields.join(', ')}.`] as const

/** Returns the error for a body that is not JSON: the message ends with V8's words. */
export function notJson (body: string): readonly [number: number, message: string] {
  try {
    JSON.parse(body)
  } catch (error) {
    return [40008, `The body is not valid JSON: ${(error as Error).message.toWellFormed()}.`]
  }
  throw new Error(`JSON: ${body}`)
}

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
