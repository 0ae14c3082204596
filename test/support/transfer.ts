// Helpers for tests that run the program's commands in separate processes.
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from './database.ts'

export const ndjson = (count: number) =>
  Array.from({ length: count }, (_, id) => `{"id":${id},"name":"plant ${id}","tag":"indoor"}\n`).join('')

export const countPlants = async (url: string) =>
  Number((await sql(url, 'select count(*) from plants'))[0]?.count)

export async function until (url: string, condition: string): Promise<void> {
  while ((await sql(url, `select ${condition} as holds`))[0]?.holds !== true) await delay(10)
}
