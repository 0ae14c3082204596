import neostandard from 'neostandard'

export default neostandard({ ts: true, noJsx: true, ignores: ['.data', '.tap', 'node_modules'] })
