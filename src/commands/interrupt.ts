/** Ends the program on a signal, until `serve` handles signals. 130 is the usual exit code after Ctrl-C. */
export const interrupt = () => process.exit(130)
