// When what waits is looked at: once for all that a turn of the event loop brings.

/** How often it is looked at while nobody may go. */
const againMs = 50

export class Schedule {
  readonly #look: () => void
  #isSoon = false
  #later: NodeJS.Timeout | undefined

  constructor (look: () => void) {
    this.#look = () => {
      this.#isSoon = false
      clearTimeout(this.#later)
      look()
    }
  }

  /** After all that this turn of the event loop brings. */
  soon (): void {
    if (this.#isSoon) return
    this.#isSoon = true
    setImmediate(this.#look)
  }

  /** For when nobody may go, and nobody tells when somebody may. */
  later (): void {
    this.#later = setTimeout(this.#look, againMs)
  }
}
