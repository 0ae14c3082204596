import type { Test } from 'tap'
import { fieldsOf } from '../../src/http/types.ts'
import { NewPlantSchema } from '../../src/plants/schemas.ts'
import type { Answer } from './raw.ts'

/** How whatever is no plant at all is refused. In full it stands in openapi.json. */
export const noPlant = [40010, `The body must be a JSON object${fieldsOf(NewPlantSchema)}.`] as const

interface InjectAnswer {
  statusCode: number
  headers: Record<string, unknown>
  body: string
}

/** Asserts the whole of an answer that is no success, whoever in the service gave it. */
export function isRefusal (t: Test, answer: InjectAnswer | Answer | undefined, number: number, message: string, title = ''): void {
  if (answer === undefined) {
    t.fail(`no answer: ${title}`)
    return
  }
  const status = 'statusCode' in answer ? answer.statusCode : answer.status
  const body = parse(answer.body)
  t.match({ status, type: answer.headers['content-type'], keys: Object.keys(body), ...body }, {
    status: Math.floor(number / 100),
    type: /^application\/json$/,
    keys: ['error', 'message'],
    error: number,
    message
  }, `${title} ${number}`.trim())
}

function parse (text: string): object {
  try {
    return JSON.parse(text)
  } catch {
    return { text }
  }
}
