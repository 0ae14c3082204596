// Which servers a connection string names, by libpq's rules.

/** `read-write`: no standby, nor read-only by its settings. `primary`: no standby. `any`: whoever answers. */
const targets = ['read-write', 'primary', 'any'] as const
export type Target = typeof targets[number]

export interface Servers {
  /** A connection string for each. */
  urls: string[]
  target: Target
}

/**
 * Reads `postgres://user@one:5432,two/db?target_session_attrs=read-write`; lists may also stand in
 * the parameters `host` and `port`. Throws when they don't fit together, or when the target would
 * take no writes.
 */
export function parseServers (url: string): Servers {
  const parts = /^([^/]*:\/\/(?:[^/?#]*@)?)([^/?#]*)([^?#]*)\??(.*)$/s
  const [, before, authority, path, query] = parts.exec(url) as string[]
  const parameters = new URLSearchParams(query)
  const target = parameters.get('target_session_attrs') ?? 'read-write'
  if (!isTarget(target)) {
    throw new Error(`target_session_attrs can be ${targets.join(', ')}: plants are written, too`)
  }
  const hosts = (parameters.get('host') ?? authority as string).split(',')
  if (hosts.length === 1) return { urls: [url], target }

  const ports = parameters.get('port')?.split(',') ?? []
  if (ports.length > 1 && ports.length !== hosts.length) {
    throw new Error(`could not match ${ports.length} port numbers to ${hosts.length} hosts`)
  }
  const urls = hosts.map((host, index) => {
    const own = new URLSearchParams(parameters)
    if (parameters.has('host')) own.set('host', host)
    if (ports.length > 0) own.set('port', ports[index] ?? ports[0] as string)
    return `${before}${parameters.has('host') ? authority : host}${path}?${own}`
  })
  return { urls, target }
}

const isTarget = (text: string): text is Target => targets.includes(text as Target)
