// The command export: writes plants to a file.
import { createWriteStream } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'
import type { Config } from '../config.ts'
import type { Row } from '../database/connection.ts'
import { columnList } from '../plants/columns.ts'
import { createWriter, findFormat } from './files.ts'
import { runTransfer, type Transfer } from './transfer.ts'

/** In plants and in characters. The sizes of the plants in a page determine how many the next page has. */
const [firstPageSize, maxPageSize, maxPageLength] = [100, 500, 2 ** 20]

/** Writes to standard output without a file. Without a user it writes the plants of all users. */
export async function exportPlants (
  config: Config, user: string | undefined, file: string | undefined, { format }: { format?: string }
): Promise<void> {
  const { isCsv, isGzip } = findFormat(file, format)
  const [head, write] = createWriter(isCsv, user)
  async function * contents (transfer: Transfer) {
    yield head
    for await (const rows of readPages(transfer, user)) {
      transfer.rows += rows.length
      yield write(rows)
    }
  }
  await runTransfer(config, async (transfer) => {
    // The file appears when it is complete.
    const part = `${file}.part`
    const output = file === undefined ? process.stdout : createWriteStream(part, { mode: 0o600, flush: true })
    const stages = [contents(transfer), ...isGzip ? [createGzip()] : [], output]
    const written = pipeline(stages as NodeJS.ReadWriteStream[], { signal: transfer.signal })
    if (file === undefined) return written
    await written.then(() => rename(part, file)).finally(() => rm(part, { force: true }))
  })
}

/** Reads one snapshot by many short statements: the role or a pooler may limit the time of each. */
async function * readPages ({ execute }: Transfer, user?: string): AsyncGenerator<Row[]> {
  const [columns, condition, values] =
    user === undefined ? ['owner, id', 'true', []] : ['id', 'owner = $1', [user]]
  await execute('begin isolation level repeatable read read only')
  await execute(`declare export no scroll cursor for
    select ${columns}${columnList} from plants where ${condition} order by owner, id`, values)
  const fetchPage = (size: number) => {
    const page = execute(`fetch ${size} from export`)
    // Nothing awaits the page when the output has failed. An unhandled rejection would crash the process.
    page.catch(() => {})
    return page
  }
  let next = fetchPage(firstPageSize)
  for (let rows = await next; rows.length > 0; rows = await next) {
    let length = 0
    for (const row of rows) for (const value of row) length += value?.length ?? 0
    const affordable = Math.ceil(maxPageLength / length * rows.length)
    next = fetchPage(Math.min(maxPageSize, affordable))
    yield rows
  }
}
