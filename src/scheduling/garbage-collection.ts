// Collects garbage after a peak of memory, because an idle V8 collects nothing.

let timer: NodeJS.Timeout | undefined

/** Collects garbage five seconds after the last call. Call this at the end of a peak. */
export function collectSoon (): void {
  clearTimeout(timer)
  // With these options, a collection takes some 60 ms and returns memory to the system.
  const collect = () => { void globalThis.gc?.({ execution: 'async', flavor: 'last-resort' }) }
  timer = setTimeout(collect, 5000).unref()
}
