import { registerHooks } from 'node:module'
import t from 'tap'
import { withDatabase } from '../../src/commands/database.ts'
import { readConfig } from '../../src/config.ts'

// Make the import from dev/ fail, as in the container image, which has no folder dev/.
registerHooks({
  resolve: (specifier, context, next) =>
    next(specifier.replace('/dev/embedded-postgres.ts', '/dev/missing.ts'), context)
})

t.test('without DATABASE_URL and without the development server, the message says what to set', async (t) => {
  await t.rejects(withDatabase(readConfig({}), async () => {}), {
    message: 'DATABASE_URL is not set: expected a PostgreSQL database, ' +
      'such as postgres://plant_store:secret@localhost:5432/plant_store'
  })
})
