// The command `import`: checks the lines of a file and creates their plants.
import { fstatSync } from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { createGunzip } from 'node:zlib'
import { Type } from '@sinclair/typebox'
import { isPrintable } from '../../access/user-name.ts'
import type { Config } from '../../config.ts'
import type { ApiError } from '../../errors.ts'
import { compileValidator } from '../../http/validation.ts'
import { NewPlantSchema, PlantParamsSchema, type Plant } from '../../plants/schemas.ts'
import type { PlantToStore } from '../../plants/writes.ts'
import { findFormat, invalid, readCsv, readNdjson, type Line } from './files.ts'
import { Batch, copyAll, insertAll } from './batch.ts'
import { runTransfer, type Transfer } from './transfer.ts'

export interface ImportOptions {
  format?: string
  /** Plants per transaction. By default one transaction creates all plants. */
  chunk?: number
  /** Plants per second. */
  rate?: number
  /** The file for rejected lines. Without it the first rejected line ends the import. */
  skipErrors?: string
  dryRun: boolean
}

// Import sends a batch at `maxBatchLength` characters. With a low `rate`, batches are smaller: import sends
// `batchesPerSecond` of them.
const [maxBatchLength, batchesPerSecond] = [2 ** 19, 10]
/** A line may be this much longer than BODY_LIMIT, because the line may also name the user. */
const extraBytes = 2048
/** The exit code of an import that completed but rejected some lines. */
const rejectedCode = 3

/** Reads standard input if there is no `file`. If there is no `user`, each line names its user. */
export async function importPlants (
  config: Config, user: string | undefined, file: string | undefined, options: ImportOptions
): Promise<void> {
  const { isCsv, isGzip } = findFormat(file, options.format)
  await runTransfer(config, async (transfer) => {
    await using input = file === undefined ? undefined : await open(file)
    const { dev, ino, size } = fstatSync(input?.fd ?? 0, { bigint: true })
    await using rejects = options.skipErrors === undefined ? undefined : await open(options.skipErrors, 'a')
    const output = await rejects?.stat({ bigint: true })
    if (output?.isFile()) {
      // Compare the open files: two names may be links to one file, and standard input has no name.
      if (output.dev === dev && output.ino === ino) {
        throw new Error('--skip-errors: expected another file than the one to import')
      }
      await rejects?.truncate()
    }
    const source = input?.createReadStream() ?? process.stdin
    const target = new Import(options, transfer, rejects)
    const total = Number(size) || Infinity
    transfer.share = () => source.bytesRead / total
    transfer.summary = () => target.summary()
    const read = isCsv ? readCsv : readNdjson
    const check = createCheck(isCsv, user)
    const store = (chunks: AsyncIterable<Buffer>) =>
      target.store(read(chunks, config.BODY_LIMIT + extraBytes, user), check)
    await pipeline(source, ...isGzip ? [createGunzip()] : [], store, { signal: transfer.signal })
    if (target.rejected > 0) process.exitCode = rejectedCode
  })
}

/** The returned function checks a line like a body of POST /plants, and throws an ApiError if invalid. */
function createCheck (isCsv: boolean, user?: string): (line: Line) => PlantToStore {
  const { properties } = NewPlantSchema
  const owner = user === undefined && { user: properties.name }
  const schema = Type.Object({ ...owner, ...properties, ...isCsv && PlantParamsSchema.properties })
  const validate = compileValidator({ schema, httpPart: 'body' })
  return (line) => {
    const checked = validate(line.parse()) as { value: Plant & Omit<PlantToStore, 'plant'>, error?: Error }
    const { value: plant, error } = checked
    if (error !== undefined) throw error
    if (user !== undefined && 'user' in plant) throw invalid('user must be absent, or use --all.')
    if (user === undefined && !isPrintable(plant.user)) {
      throw invalid('user must be 1 to 255 printable characters.')
    }
    return { user: user ?? plant.user, id: String(plant.id), plant }
  }
}

class Import {
  rejected = 0
  #created = 0
  #existing = 0
  #committed = { created: 0, existing: 0 }
  #note = ''
  #uncommitted = 0
  #stored: Promise<void> = Promise.resolve()
  /** False after a batch with plants that exist. The next batch probably has such plants, too. */
  #copies = true
  readonly #startedAt = performance.now()
  readonly #options: ImportOptions
  readonly #transfer: Transfer
  readonly #rejects: FileHandle | undefined

  constructor (options: ImportOptions, transfer: Transfer, rejects: FileHandle | undefined) {
    this.#options = options
    this.#transfer = transfer
    this.#rejects = rejects
  }

  async store (lines: AsyncIterable<Iterable<Line>>, check: (line: Line) => PlantToStore): Promise<void> {
    const { rate = Infinity, chunk = Infinity, dryRun } = this.#options
    let batch = new Batch()
    let number = 0
    for await (const some of lines) {
      for (const line of some) {
        try {
          batch.add(check(line))
        } catch (error) {
          await this.#reject(line, error as ApiError)
          continue
        }
        number = line.number
        const left = dryRun ? Infinity : chunk - this.#uncommitted
        const isFull = batch.size >= Math.min(left, rate / batchesPerSecond)
        if (!isFull && batch.length < maxBatchLength) continue
        await this.#send(batch)
        if (batch.size === left) await this.#commit(number)
        batch = new Batch()
      }
      batch.encode()
    }
    if (batch.size > 0) await this.#send(batch)
    await this.#commit(number)
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
    await this.#rejects.appendFile(`${JSON.stringify({ line: number, reason, text })}\n`)
  }

  /** Does not wait until the plants are stored, so that the import reads the next lines meanwhile. */
  async #send (batch: Batch): Promise<void> {
    await this.#stored
    const due = this.#startedAt + this.#transfer.progress * 1000 / (this.#options.rate ?? Infinity)
    const { signal, client } = this.#transfer
    if (due > performance.now()) await delay(due - performance.now(), undefined, { signal })
    if (this.#uncommitted === 0) await client.query('begin')
    this.#stored = this.#store(batch)
    this.#stored.catch(() => {})
    this.#uncommitted += batch.size
    this.#transfer.progress += batch.size
  }

  async #store (batch: Batch): Promise<void> {
    const { client } = this.#transfer
    const lines = batch.sorted()
    const isCopied = this.#copies && await copyAll(client, lines)
    const created = isCopied ? batch.size : await insertAll(client, lines)
    this.#copies = created === batch.size
    this.#created += created
    this.#existing += batch.size - created
  }

  /** Awaits the insert first. After a failed insert, `commit` would roll back without an error. */
  async #commit (line: number): Promise<void> {
    await this.#stored
    this.#note = '; the outcome of the last commit is unknown: import again'
    if (this.#uncommitted > 0) await this.#transfer.client.query(this.#options.dryRun ? 'rollback' : 'commit')
    this.#note = `; stored up to line ${line}`
    this.#uncommitted = 0
    this.#committed = { created: this.#created, existing: this.#existing }
  }
}
