// The command `import`: checks the lines of a file and creates their plants.
import { createReadStream } from 'node:fs'
import { open, stat, type FileHandle } from 'node:fs/promises'
import { resolve } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { createGunzip } from 'node:zlib'
import { Type } from '@sinclair/typebox'
import { isPrintable } from '../../access/token-format.ts'
import type { Config } from '../../config.ts'
import type { ApiError } from '../../errors.ts'
import { compileValidator } from '../../http/validation.ts'
import { columnList, fields, textFields, types } from '../../plants/columns.ts'
import { NewPlantSchema, PlantParamsSchema, type Plant } from '../../plants/schemas.ts'
import { findFormat, invalid, readCsv, readNdjson, type Line } from './files.ts'
import { runTransfer, type Transfer } from './transfer.ts'

export interface ImportOptions {
  format?: string
  /** Plants per transaction. By default one transaction creates all plants. */
  chunk?: number
  /** Plants per second. */
  rate?: number
  /** The file for rejected lines. Without it the first rejected line ends the import. */
  skipErrors?: string
  /** Rejects a plant if its user already has a plant with the same id. By default skips the plant. */
  strict: boolean
  dryRun: boolean
}

interface PlantLine extends Line { user: string, id: string, plant: Plant }

// Import sends a batch at `maxBatchSize` plants or `maxBatchLength` characters. With a low `rate`, batches
// are smaller: import sends `batchesPerSecond` of them.
const [maxBatchSize, maxBatchLength, batchesPerSecond] = [2000, 2 ** 20, 10]
/** A line may be this much longer than BODY_LIMIT, because the line may also name the user. */
const extraBytes = 2048
/** The exit code of an import that completed but rejected some lines. */
const rejectedCode = 3
const idTaken = invalid('The user already has a plant with this id.')

const arrays = fields.map((field, index) => `, $${index + 3}::${types[field]}[]`).join('')
// If a file repeats an id, PostgreSQL stores the first plant with this id.
const insert = `insert into plants (owner, id${columnList})
  select owner, id${columnList} from unnest($1::text[], $2::bigint[]${arrays})
    with ordinality as plant (owner, id${columnList}, n)
  order by owner collate "C", id, n
  on conflict do nothing returning owner, id`

/** Reads standard input if there is no `file`. If there is no `user`, each line names its user. */
export async function importPlants (
  config: Config, user: string | undefined, file: string | undefined, options: ImportOptions
): Promise<void> {
  const { isCsv, isGzip } = findFormat(file, options.format)
  const { skipErrors } = options
  if (file !== undefined && skipErrors !== undefined && resolve(file) === resolve(skipErrors)) {
    throw new Error('--skip-errors: expected another file than the one to import')
  }
  // Infinity stands for an unknown size, such as the size of a pipe.
  const size = file === undefined ? Infinity : (await stat(file)).size || Infinity
  await runTransfer(config, async (transfer) => {
    await using rejects = skipErrors === undefined ? undefined : await open(skipErrors, 'w')
    const source = file === undefined ? process.stdin : createReadStream(file)
    const target = new Import(options, transfer, rejects)
    transfer.share = () => source.bytesRead / size
    transfer.summary = () => target.summary()
    const read = isCsv ? readCsv : readNdjson
    const check = createCheck(isCsv, user)
    const store = (chunks: AsyncIterable<Buffer>) =>
      target.store(read(chunks, config.BODY_LIMIT + extraBytes, user), check)
    const stages = [source, ...isGzip ? [createGunzip()] : [], store]
    await pipeline(stages as NodeJS.ReadWriteStream[], { signal: transfer.signal })
    if (target.rejected > 0) process.exitCode = rejectedCode
  })
}

/** The returned function checks a line like a body of POST /plants, and throws an ApiError if invalid. */
function createCheck (isCsv: boolean, user?: string): (line: Line) => PlantLine {
  const { properties } = NewPlantSchema
  const owner = user === undefined && { user: properties.name }
  const schema = Type.Object({ ...owner, ...properties, ...isCsv && PlantParamsSchema.properties })
  const validate = compileValidator({ schema, httpPart: 'body' } as never)
  return (line) => {
    const checked = validate(line.parse()) as { value: Plant & Pick<PlantLine, 'user' | 'id'>, error?: Error }
    const { value: plant, error } = checked
    if (error !== undefined) throw error
    if (user !== undefined && 'user' in plant) throw invalid('user must be absent, or use --all.')
    if (!isPrintable(user ?? plant.user)) throw invalid('user must be 1 to 255 printable characters.')
    return { ...line, user: user ?? plant.user, id: String(plant.id), plant }
  }
}

class Import {
  rejected = 0
  #created = 0
  #existing = 0
  #committed = { created: 0, existing: 0 }
  #note = ''
  #uncommitted = 0
  #inserted: Promise<number> = Promise.resolve(0)
  readonly #startedAt = performance.now()
  readonly #options: ImportOptions
  readonly #transfer: Transfer
  readonly #rejects: FileHandle | undefined

  constructor (options: ImportOptions, transfer: Transfer, rejects: FileHandle | undefined) {
    this.#options = options
    this.#transfer = transfer
    this.#rejects = rejects
  }

  async store (lines: AsyncIterable<Line>, check: (line: Line) => PlantLine): Promise<void> {
    const { rate = Infinity, chunk = Infinity, dryRun } = this.#options
    let batch: PlantLine[] = []
    let length = 0
    for await (const line of lines) {
      try {
        batch.push(check(line))
      } catch (error) {
        await this.#reject(line, error as ApiError)
        continue
      }
      for (const field of textFields) length += batch.at(-1)?.plant[field]?.length ?? 0
      const left = dryRun ? Infinity : chunk - this.#uncommitted
      const isFull = batch.length >= Math.min(maxBatchSize, left, rate / batchesPerSecond)
      if (!isFull && length < maxBatchLength) continue
      await this.#send(batch)
      if (batch.length === left) await this.#commit()
      batch = []
      length = 0
    }
    if (batch.length > 0) await this.#send(batch)
    await this.#commit()
    this.#note = dryRun ? '; nothing is stored' : ''
  }

  summary (): string {
    const { created, existing } = this.#committed
    return `${created} created, ${existing} existing, ${this.rejected} rejected${this.#note}`
  }

  async #reject ({ number, text }: Line, error: ApiError): Promise<void> {
    const reason = error.message.replace('The body', 'The line')
    this.rejected++
    if (this.#rejects === undefined) throw new Error(`line ${number}: ${reason}`)
    await this.#rejects.appendFile(`${JSON.stringify({ line: number, reason, text: text() })}\n`)
  }

  /** Does not wait until the plants are stored, so that the import reads the next lines meanwhile. */
  async #send (batch: PlantLine[]): Promise<void> {
    await this.#inserted
    const due = this.#startedAt + this.#transfer.progress * 1000 / (this.#options.rate ?? Infinity)
    const { signal } = this.#transfer
    if (due > performance.now()) await delay(due - performance.now(), undefined, { signal })
    if (this.#uncommitted === 0) await this.#transfer.client.query('begin')
    this.#inserted = this.#insert(batch)
    this.#inserted.catch(() => {})
    this.#uncommitted += batch.length
    this.#transfer.progress += batch.length
  }

  /** Resolves to the number of the last line in the batch. */
  async #insert (batch: PlantLine[]): Promise<number> {
    const values = [
      batch.map(({ user }) => user), batch.map(({ id }) => id),
      ...fields.map((field) => batch.map(({ plant }) => plant[field]))
    ]
    const { rows } = await this.#transfer.client.query({ text: insert, values, rowMode: 'array' })
    this.#created += rows.length
    if (!this.#options.strict) this.#existing += batch.length - rows.length
    else if (rows.length < batch.length) {
      const created = new Set(rows.map(([user, id]) => `${id} ${user}`))
      const existing = batch.filter(({ user, id }) => !created.delete(`${id} ${user}`))
      for (const line of existing) await this.#reject(line, idTaken)
    }
    return batch.at(-1)?.number as number
  }

  /** Awaits the insert first. After a failed insert, `commit` would roll back without an error. */
  async #commit (): Promise<void> {
    const line = await this.#inserted
    this.#note = '; the outcome of the last commit is unknown: import again'
    if (this.#uncommitted > 0) await this.#transfer.client.query(this.#options.dryRun ? 'rollback' : 'commit')
    this.#note = `; stored up to line ${line}`
    this.#uncommitted = 0
    this.#committed = { created: this.#created, existing: this.#existing }
  }
}
