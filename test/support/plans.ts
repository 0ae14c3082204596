// Counts the rows that statements read, by the plans that PostgreSQL reports after it has run a statement.
import pg from 'pg'
import type { Test } from 'tap'

interface Plan {
  'Node Type': string
  'Relation Name'?: string
  /** The average of all loops. */
  'Actual Rows': number
  'Actual Loops': number
  'Rows Removed by Filter'?: number
  Plans?: Plan[]
}

/** Makes later sessions send a notice with the plan of each statement. `run` runs SQL as a superuser. */
export async function reportPlans (run: (text: string) => Promise<unknown>, database: string): Promise<void> {
  const settings = {
    session_preload_libraries: 'auto_explain',
    'auto_explain.log_min_duration': '0',
    'auto_explain.log_analyze': 'on',
    'auto_explain.log_timing': 'off',
    'auto_explain.log_format': 'json',
    'auto_explain.log_level': 'notice'
  }
  for (const [name, value] of Object.entries(settings)) {
    await run(`alter database ${database} set ${name} = '${value}'`)
  }
}

/**
 * Returns a function that runs `act`. It resolves to the rows that each statement of this process has read
 * meanwhile. Call this before the process opens connections to a database with `reportPlans`.
 */
export function watchPlans (t: Test) {
  const statements: Array<{ text: string, rowsRead: number }> = []
  const { connect } = pg.Client.prototype
  t.intercept(pg.Client.prototype, 'connect', {
    value (this: pg.Client, ...args: unknown[]) {
      this.on('notice', ({ message = '' }) => {
        const json = /^duration: .* plan:\n(.*)$/s.exec(message)?.[1]
        if (json === undefined) return
        const { 'Query Text': text, Plan: plan } = JSON.parse(json)
        statements.push({ text, rowsRead: countRows(plan) })
      })
      return Reflect.apply(connect, this, args)
    }
  })
  return async function watch (act: () => Promise<unknown>): Promise<typeof statements> {
    statements.length = 0
    await act()
    return statements.splice(0)
  }
}

/** Counts the rows that the plan's nodes have read from tables of users, also rows that a filter removed. */
function countRows (plan: Plan): number {
  const { 'Node Type': type, 'Relation Name': table = 'pg_', 'Actual Rows': rows, Plans = [] } = plan
  const { 'Actual Loops': loops, 'Rows Removed by Filter': removed = 0 } = plan
  const isScan = type !== 'ModifyTable' && !table.startsWith('pg_')
  return (isScan ? (rows + removed) * loops : 0) + Plans.reduce((sum, each) => sum + countRows(each), 0)
}
