import neostandard from 'neostandard'

export default [
  ...neostandard({ ts: true, noJsx: true, ignores: ['.data', '.tap', 'node_modules'] }),
  {
    files: ['src/**/*.ts', 'dev/**/*.ts', 'bench/**/*.ts', 'release/**/*.ts', 'test/**/*.ts'],
    ignores: ['test/system/{faults,deploy}/**'],
    rules: { '@stylistic/max-len': ['error', { code: 110, ignorePattern: '^ *// https?://\\S+$' }] }
  }
]
