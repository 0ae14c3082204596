import neostandard from 'neostandard'

export default [
  ...neostandard({ ts: true, noJsx: true, ignores: ['.data', '.tap', 'node_modules'] }),
  {
    files: ['**/*.ts'],
    rules: { '@stylistic/max-len': ['error', { code: 110, ignorePattern: '^ *// https?://\\S+$' }] }
  }
]
