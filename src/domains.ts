// The domains of the service: their tables and their routes. Add a new domain here. All other code of src
// takes the tables and the routes from this list.
import type { FastifyInstance } from 'fastify'
import type { Config } from './config.ts'
import type { Database } from './database/database.ts'
import { plantsTable } from './plants/plant.ts'
import { createPlants } from './plants/repository.ts'
import { plantsRoutes } from './plants/routes.ts'
import type { MemoryBudget } from './scheduling/memory-budget.ts'
import type { Table } from './table-gateway/table.ts'

export interface Domain {
  /** The tables with rows of users. */
  tables: Table[]
  /** Adds the routes to `app`, which requires a bearer token for each of them. */
  register (app: FastifyInstance, database: Database, config: Config, budget: MemoryBudget): void
}

export const domains: Domain[] = [
  {
    tables: [plantsTable],
    register (app, database, config, budget) {
      app.register(plantsRoutes, { plants: createPlants(database, config, budget) })
    }
  }
]

export const ownedTables = domains.flatMap(({ tables }) => tables)

/** The names of all tables with data of users. */
export const tableNames = [...ownedTables.map(({ name }) => name), 'tokens']
