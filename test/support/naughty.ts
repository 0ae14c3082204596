// Texts that break careless parsers and serializers. The Big List of Naughty Strings is the model.
export const naughty = [
  '', ' ', '  both ends  ', '\t', '\n', '\r', '\r\n', 'two\nlines', 'two\r\nlines',
  'ends in a return\r', '\u0001\u001F', '\u007F', '\u0085', '\u00A0\u2003', '\u2028\u2029', '\uFEFF',
  '\uFEFFmark', '\uFFFD', '\uFFFE\uFFFF', '\u{10FFFF}', '"', '""', '"quoted"', 'a"b', "'", '`', ',',
  ',,', 'a,b', ';', '\\', '\\n', '\\"', '\\N', '\\.', '{}', '[]', '{"a":1}', '=1+1', '+1', '-1',
  '@SUM(A1)', "=cmd|' /C calc'!A0", '#', '# no comment', '//', '/*', '--', '$1', '$$', '%00', '%s',
  'null', 'NULL', 'undefined', 'NaN', 'true', '0', '-0', '007', '1e5', '1.0', '0x10',
  '9007199254740993', '9223372036854775808', '__proto__', 'constructor', 'toString',
  "'; drop table plants; --", '<script>alert(1)</script>', '😀', '👩‍👩‍👧‍👦', '🏳️‍🌈', 'é', 'e\u0301', 'ﬁ',
  'İi̇ıI', 'Å\u212B', '가\u1100\u1161', 'שלום', 'مرحبا \u202Eabc\u202C', '\u200B\u200D', '漢字', 'नमस्ते',
  'Z\u0351\u036B\u0343a\u0334\u0335lgo', '(╯°□°)╯', '\uE000', 'x'.repeat(60_000)
]
