// The tables with rows of users. Add the table of a new domain here.
import { plantsTable } from './plants/plant.ts'
import type { Table } from './table-gateway/table.ts'

export const ownedTables: Array<Table> = [plantsTable]
