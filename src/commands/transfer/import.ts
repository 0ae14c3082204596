// The command `import`: checks the lines of a file and creates their plants.
import { fstatSync } from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { createGunzip } from 'node:zlib'
import { Type } from '@sinclair/typebox'
import { isPrintable } from '../../access/tokens.ts'
import type { Config } from '../../config.ts'
import { ApiError } from '../../errors.ts'
import { compileValidator } from '../../http/validation.ts'
import { NewPlantSchema, PlantParamsSchema, type Plant, type PlantToStore } from '../../plants/plant.ts'
import { findFormat, invalid, readCsv, readNdjson, type Line } from './files.ts'
import { Batch, copyAll, insertAll } from './batch.ts'
import { runTransfer, type Transfer } from './transfer.ts'

/** The options of the command line, as src/main.ts describes them. */
export interface ImportOptions {
  format?: string
  chunk?: number
  rate?: number
  skipErrors?: string
  dryRun: boolean
}

// Import sends a batch at `maxBatchLength` characters. With a low `rate`, batches are smaller: import sends
// `batchesPerSecond` of them.
const [maxBatchLength, batchesPerSecond] = [2 ** 19, 10]
/** A line may be this much longer than BODY_LIMIT, because the line may also name the user. */
const extraBytes = 2048

/** Reads standard input if there is no `file`. If there is no `user`, each line names its user. */
export async function importPlants (
  config: Config, user: string | undefined, file: string | undefined, options: ImportOptions
): Promise<void> {
  const { isCsv, isGzip } = findFormat(file, options.format)
  await runTransfer(config, 'import', async (transfer) => {
    await using input = file === undefined ? undefined : await open(file)
    const { dev, ino } = fstatSync(input?.fd ?? 0, { bigint: true })
    await using rejects = options.skipErrors === undefined ? undefined : await open(options.skipErrors, 'a')
    const output = await rejects?.stat({ bigint: true })
    // Compare the open files: two names may be links to one file, and standard input has no name.
    if (output?.isFile() && output.dev === dev && output.ino === ino) {
      throw new Error('--skip-errors: expected another file than the one to import')
    }
    if (output?.isFile()) await rejects?.truncate()
    const read = isCsv ? readCsv : readNdjson
    const check = createCheck(isCsv, user)
    const store = (chunks: AsyncIterable<Buffer>) =>
      storeLines(read(chunks, config.BODY_LIMIT + extraBytes, user), check, options, transfer, rejects)
    const source = input?.createReadStream() ?? process.stdin
    await pipeline(source, ...isGzip ? [createGunzip()] : [], store, { signal: transfer.signal })
  })
}

/** The returned function checks a line like a body of POST /plants, and throws an ApiError if invalid. */
function createCheck (isCsv: boolean, user?: string): (line: Line) => PlantToStore {
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
    return { user: user ?? plant.user, id: String(plant.id), plant }
  }
}

/** Stores the plants of the lines that `check` accepts. Reports the outcome as the summary of `transfer`. */
async function storeLines (
  lines: AsyncIterable<Iterable<Line>>, check: (line: Line) => PlantToStore,
  { rate = Infinity, chunk = Infinity, dryRun }: ImportOptions, transfer: Transfer, rejects?: FileHandle
): Promise<void> {
  const { client, signal } = transfer
  const maxUncommitted = dryRun ? Infinity : chunk
  const startedAt = performance.now()
  let [created, existing, rejected, uncommitted] = [0, 0, 0, 0]
  let committed = { created, existing }
  let note = ''
  let stored: Promise<void> = Promise.resolve()
  /** False after a batch with plants that exist. The next batch probably has such plants, too. */
  let mayCopy = true
  transfer.summary = () =>
    `${committed.created} created, ${committed.existing} existing, ${rejected} rejected${note}`

  /** Does not wait until the plants are stored, so that the import reads the next lines meanwhile. */
  async function send (batch: Batch): Promise<void> {
    await stored
    const due = startedAt + (created + existing) * 1000 / rate
    if (due > performance.now()) await delay(due - performance.now(), undefined, { signal })
    if (uncommitted === 0) await client.query('begin')
    stored = store(batch)
    stored.catch(() => {})
    uncommitted += batch.size
  }

  async function store (batch: Batch): Promise<void> {
    const lines = batch.lines()
    const isCopied = mayCopy && batch.isSorted && await copyAll(client, lines)
    const count = isCopied ? batch.size : await insertAll(client, lines)
    mayCopy = count === batch.size
    created += count
    existing += batch.size - count
  }

  /** Awaits the insert first. After a failed insert, `commit` would roll back without an error. */
  async function commit (noteAfter: string): Promise<void> {
    await stored
    note = '; the outcome of the last commit is unknown: import again'
    if (uncommitted > 0) await client.query(dryRun ? 'rollback' : 'commit')
    note = noteAfter
    uncommitted = 0
    committed = { created, existing }
  }

  let batch = new Batch()
  for await (const some of lines) {
    for (const line of some) {
      try {
        batch.add(check(line))
      } catch (error) {
        if (!(error instanceof ApiError)) throw error
        rejected++
        const reason = error.message.replace('The body', 'The line')
        if (rejects === undefined) throw new Error(`line ${line.number}: ${reason}`)
        await rejects.appendFile(`${JSON.stringify({ line: line.number, reason, text: line.text })}\n`)
        continue
      }
      const maxSize = Math.min(maxUncommitted - uncommitted, rate / batchesPerSecond)
      if (batch.size < maxSize && batch.length < maxBatchLength) continue
      await send(batch)
      if (uncommitted === maxUncommitted) await commit(`; stored up to line ${line.number}`)
      batch = new Batch()
    }
    batch.encode()
  }
  if (batch.size > 0) await send(batch)
  await commit(dryRun ? '; nothing is stored' : '')
  if (rejected > 0) process.exitCode = 3
}
