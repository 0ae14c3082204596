// Checks the lines of an import by the rules of POST /plants.
import { Type } from '@sinclair/typebox'
import { isPrintable } from '../../access/tokens.ts'
import { compileValidator } from '../../http/validation.ts'
import {
  fields, NewPlantSchema, PlantParamsSchema, type Plant, type PlantToStore
} from '../../plants/plant.ts'
import { invalid, type Line } from './files.ts'

/** The returned function throws an ApiError for an invalid line. `maxBytes` limits a plant as JSON. */
export function createCheck (
  isCsv: boolean, user: string | undefined, maxBytes: number
): (line: Line) => PlantToStore {
  const { properties } = NewPlantSchema
  const owner = user === undefined && { user: properties.name }
  const schema = Type.Object({ ...owner, ...properties, ...isCsv && PlantParamsSchema.properties })
  const validate = compileValidator({ schema, httpPart: 'body' })
  return (line) => {
    const { value: plant, error } = validate(line.parse()) as
      { value: Plant & Omit<PlantToStore, 'plant'>, error?: Error }
    if (error !== undefined) throw error
    if (user && 'user' in plant) throw invalid('user must be absent, or use --all.')
    if (!user && !isPrintable(plant.user)) throw invalid('user must be 1 to 255 printable characters.')
    // In JSON, a character of a CSV file may take six bytes. Lists and exports rely on the limit.
    if (line.text.length * 6 > maxBytes && Buffer.byteLength(JSON.stringify(plant, fields)) > maxBytes) {
      throw invalid(`The plant must not have more than ${maxBytes} bytes as JSON.`)
    }
    return { user: user ?? plant.user, id: String(plant.id), plant }
  }
}
