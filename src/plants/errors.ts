// What can go wrong with plants alone.
import { defineErrors } from '../errors.ts'

export const plantErrors = defineErrors({
  ID_TAKEN: { number: 40014, message: 'You already have a plant with this id.' },
  PLANT_NOT_FOUND: { number: 40402, message: 'You have no plant with this id.' }
})
