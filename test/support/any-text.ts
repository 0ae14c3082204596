import fc from 'fast-check'

/**
 * Any text, also with U+0000 or lone surrogates, which the service rejects. `fc.string` with all of Unicode
 * takes a second of processor time to prepare.
 */
export const anyText = fc.array(fc.oneof(fc.nat(0x2FF), fc.nat(0xFFFF), fc.nat(0x10FFFF)))
  .map((points) => String.fromCodePoint(...points))
