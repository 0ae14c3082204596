import t from 'tap'
import { defineErrors, errors } from '../src/errors.ts'

t.test('a number that is taken is given to no other error', async (t) => {
  t.throws(() => defineErrors({ POT_BROKEN: { number: errors.INTERNAL.number, message: 'The pot is broken.' } }),
    { message: 'POT_BROKEN: 50001 is taken' })
})
