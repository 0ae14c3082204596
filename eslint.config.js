import neostandard from 'neostandard'

export default [
  ...neostandard({ ts: true, noJsx: true, ignores: ['.data', '.tap', 'node_modules'] }),
  {
    files: ['src/**/*.ts', 'dev/**/*.ts', 'bench/**/*.ts', 'release/**/*.ts', 'test/**/*.ts'],
    // Tables of long words: wrapped they are harder to read.
    ignores: ['test/system/{faults,deploy,container,scale,observability,program}/**'],
    rules: { '@stylistic/max-len': ['error', { code: 110, ignorePattern: '^ *// https?://\\S+$' }] }
  }
]
