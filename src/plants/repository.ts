// Creates, deletes and lists plants in the database. docs/statements.sql has the SQL of the gateway.
import type { Database } from '../database/database.ts'
import type { MemoryBudget } from '../scheduling/memory-budget.ts'
import { createGateway, type GatewayConfig } from '../table-gateway/gateway.ts'
import { plantsTable, type Plant } from './plant.ts'

export type Plants = ReturnType<typeof createPlants>

/** To add an operation, add a function beside those of the gateway: see CONTRIBUTING.md. */
export const createPlants = (database: Database, config: GatewayConfig, budget: MemoryBudget) =>
  createGateway<Plant>(database, plantsTable, config, budget)
