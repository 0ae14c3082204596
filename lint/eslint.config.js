import regexp from 'eslint-plugin-regexp'
import neostandard from 'neostandard'

export default [
  ...neostandard({ ts: true, noJsx: true, ignores: ['.data', '.tap', '**/node_modules'] }),
  {
    files: ['**/*.ts'],
    rules: { '@stylistic/max-len': ['error', { code: 110, ignorePattern: '^#!|^ *// https?://\\S+$' }] }
  },
  {
    // A client could keep the event loop busy with a text for which a regular expression takes quadratic time.
    files: ['src/**/*.ts'],
    plugins: { regexp },
    rules: {
      'regexp/no-super-linear-backtracking': ['error', { report: 'potential' }],
      'regexp/no-super-linear-move': ['error', { report: 'potential' }]
    }
  },
  {
    // Nobody handles a rejection of a promise that is neither awaited nor caught: it would end the process.
    files: ['src/**/*.ts', 'dev/*.ts', 'release/*.ts'],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      // `void` marks a promise that never rejects.
      'no-void': ['error', { allowAsStatement: true }],
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/no-misused-promises': 'error'
    }
  }
]
