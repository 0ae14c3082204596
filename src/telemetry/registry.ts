// Creates metrics in a registry.
import {
  collectDefaultMetrics, Counter, Gauge, Histogram, Registry, type CollectFunction
} from '@prometheus-io/client'

// The registry leaves out these default metrics, because promtool rejects their names.
const misnamed = ['active_handles_total', 'active_requests_total', 'active_resources_total',
  'eventloop_utilization_histogram', 'eventloop_utilization_summary']

export type Metrics = ReturnType<typeof createMetrics>

export function createMetrics () {
  const registry = new Registry()
  const registers = [registry]
  collectDefaultMetrics({ register: registry })
  for (const name of misnamed) registry.removeSingleMetric(`nodejs_${name}`)
  return {
    registry,
    /** The series of these label values start at 0. */
    counter (name: string, help: string, label: string, values: readonly string[] = []) {
      const counter = new Counter({ name, help, labelNames: [label], registers })
      for (const value of values) counter.inc({ [label]: value }, 0)
      return counter
    },
    histogram: (name: string, help: string, buckets: number[], ...labelNames: string[]) =>
      new Histogram({ name, help, buckets, labelNames, registers }),
    /** `collect` sets the gauge at each scrape. */
    gauge: (name: string, help: string, collect: CollectFunction<Gauge<string>>, ...labelNames: string[]) =>
      new Gauge({ name, help, collect, labelNames, registers }),
  }
}

/** The upper bounds of the buckets, in seconds. */
export const durationBuckets = [
  0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10
]
