// Helpers for tests that run the program's commands in separate processes.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from './database.ts'
import { program } from './program.ts'

export const ndjson = (count: number) =>
  Array.from({ length: count }, (_, id) => `{"id":${id},"name":"plant ${id}","tag":"indoor"}\n`).join('')

export const countPlants = async (url: string) =>
  Number((await sql(url, 'select count(*) from plants'))[0]?.count)

/** Runs the program in a terminal. Types `answer` when `question` appears. */
export async function onTerminal (
  args: string[], environment: Record<string, string>, { question = '', answer = '' } = {}
): Promise<{ code: number, shown: string }> {
  const command = [...program, ...args].map((word) => `'${word}'`).join(' ')
  const child = spawn('script', ['--quiet', '--return', '--command', command, '/dev/null'],
    { env: { ...process.env, ...environment } })
  let shown = ''
  child.stdout.on('data', (chunk) => {
    shown += chunk
    if (question !== '' && shown.includes(question)) {
      question = ''
      child.stdin.write(answer)
    }
  })
  const [code] = await once(child, 'close')
  return { code, shown }
}

export async function until (url: string, condition: string): Promise<void> {
  while ((await sql(url, `select ${condition} as holds`))[0]?.holds !== true) await delay(10)
}
