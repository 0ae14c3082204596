// What is used of Node's module http itself.

// An import statement would read all it exports, WebSocket among it, and with that load Node's
// own fetch: 25 ms of the start and 12 MiB.
export const { METHODS, STATUS_CODES, createServer } = process.getBuiltinModule('node:http')
