// Combines items that arrive together, or that wait for earlier batches, into one statement.
import { batchEvents, requestContext, statementEvents } from '../events.ts'
import { WorkQueue, type Queued, type Work, type WorkQueueOptions } from './work-queue.ts'

export interface BatcherOptions<Item, Result> extends WorkQueueOptions {
  name: string
  /** Whether to retry each item alone after a batch has failed with this error. */
  isRetryable: (error: unknown) => boolean
  /** Retries one item. If undefined, the batcher retries the item in a batch of its own. */
  runAlone?: (item: Item) => Promise<Result>
}

/** Limits that turn batching off: one item per statement. */
export const singles = { maxItems: 1, maxInFlight: 100 }

interface Pending<Item extends Work, Result> extends Queued<Item> {
  context: unknown
  resolve: (result: Result | Promise<Result>) => void
}

/** Resolves to the results in the order of the items. A result may be a promise that settles later. */
type Run<Item, Result> = (items: Item[]) => Promise<Array<Result | Promise<Result>>>

/** See docs/design/002-batches.md. */
export class Batcher<Item extends Work, Result> {
  readonly #run: Run<Item, Result>
  readonly #options: BatcherOptions<Item, Result>
  readonly #queue: WorkQueue<Pending<Item, Result>>

  constructor (run: Run<Item, Result>, options: BatcherOptions<Item, Result>) {
    this.#run = run
    this.#options = options
    this.#queue = new WorkQueue((batch) => this.#flush(batch), options)
  }

  /** Rejects with OVERLOADED if the queue is full or the item expires. The rejected item was not sent. */
  add (item: Item): Promise<Result> {
    return new Promise((resolve, reject) => {
      this.#queue.add({ item, context: requestContext.getStore(), resolve, reject })
    })
  }

  async #flush (batch: Array<Pending<Item, Result>>): Promise<void> {
    const { name, isRetryable } = this.#options
    batchEvents.publish({ name, items: batch.length })
    try {
      const results = await this.#inContextOf(batch, () => this.#run(batch.map(({ item }) => item)))
      batch.forEach(({ resolve }, index) => resolve(results[index] as Result | Promise<Result>))
    } catch (error) {
      if (batch.length > 1 && isRetryable(error)) await Promise.all(batch.map((one) => this.#retryAlone(one)))
      else for (const { reject } of batch) reject(error)
    }
  }

  async #retryAlone (pending: Pending<Item, Result>): Promise<void> {
    const { runAlone } = this.#options
    if (runAlone === undefined) return this.#flush([pending])
    await this.#inContextOf([pending], () => runAlone(pending.item)).then(pending.resolve, pending.reject)
  }

  /** Sets the request context, so that traces can link the statement to the requests of the batch. */
  #inContextOf<T> (batch: Array<Pending<Item, Result>>, run: () => Promise<T>): Promise<T> {
    if (!statementEvents.hasSubscribers) return run()
    return requestContext.run(batch.map(({ context }) => context), run)
  }
}
