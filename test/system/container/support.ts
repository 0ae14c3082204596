import { execFile, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { inspect, promisify } from 'node:util'
import t, { type Test } from 'tap'

const execute = promisify(execFile)
export const root = join(import.meta.dirname, '../../..')

export const image = 'localhost/plant-store:test'
const databaseImage = 'localhost/plant-store-database:test'
export const base = 'node:26-slim'

async function docker (args: string[], env: NodeJS.ProcessEnv = process.env, input = ''): Promise<string> {
  const running = execute('docker', args, { cwd: root, env, maxBuffer: 64 * 1024 * 1024 })
  // The command may exit before it has read the input. Ignore the error of the write.
  running.child.stdin?.on('error', () => {}).end(input)
  return (await running).stdout.trim()
}

export const run = (...args: string[]) => docker(args)

const build = (tag: string, dockerfile: string[]) =>
  docker(['build', '--tag', tag, '-'], process.env, dockerfile.join('\n'))

try {
  await run('version')
  await run('compose', 'version')
} catch (error) {
  const reason = (error as { stderr?: string }).stderr?.trim() || (error as Error).message
  t.bailout(`the container suite needs a container engine and docker compose: ${reason}`)
}

export async function buildImage () {
  await run('build', '--tag', image, '.')
}

/** The settings that the first comment of each overlay asks for. */
export const settings: Record<string, Record<string, string>> = {
  external: { DATABASE_URL: 'postgres://plant_store@db.example.com/plant_store' },
  machines: { ONE: '10.0.0.1', TWO: '10.0.0.2', THREE: '10.0.0.3' },
  citus: { DATABASE_URL: 'postgres://coordinator/plant_store', MIGRATE: 'off' },
  failover: { DATABASE_URL: 'postgres://database,database-2/plant_store', CLUSTER_PASSWORD: 'secret' },
  pgbouncer: { DATABASE_URL: 'postgres://pool/plant_store', MIGRATE: 'off' }
}

/** Returns the image of PostgreSQL 18. If it lacks pg_dump, returns a substitute with version 17. */
async function findPostgres (): Promise<string> {
  const name = 'postgres:18'
  const check = ['run', '--rm', '--entrypoint=sh', name, '-c', 'pg_dump --version | grep -q " 18"']
  return run(...check).then(() => name, async () => {
    const substitute = 'localhost/postgres:test'
    await build(substitute, [
      'FROM postgres:17-trixie',
      // 999 is the user id of the official image.
      'RUN usermod --uid 999 postgres && groupmod --gid 999 postgres' +
        ' && chown -R postgres:postgres /var/lib/postgresql /var/run/postgresql',
      'ENV PGDATA=/var/lib/postgresql/17/server'
    ])
    return substitute
  })
}

/** Builds the image of the servers of backup.yml and failover.yml. */
export async function buildDatabaseImage () {
  const base = `BASE=${await findPostgres()}`
  await run('build', '--tag', databaseImage, '--build-arg', base, 'deploy/database')
}

export const buildNextImage = (tag: string, migration: string) => build(tag, [
  `FROM ${image}`,
  'USER root',
  `RUN printf '%s\\n' '-- Up Migration' '${migration}' > /app/migrations/9999_next.sql`,
  'USER 1000:1000'
])

// Maps an official image to its substitute: a Debian package, then further lines for a Dockerfile.
// The substitute reads the same configuration files as the official image.
const substitutes: Record<string, string[]> = {
  // 99 is the user id of the official image.
  'haproxy:3.4': ['haproxy', 'RUN groupmod --gid 99 haproxy && usermod --uid 99 haproxy', 'USER haproxy',
    'STOPSIGNAL SIGUSR1', 'CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]'],
  'nginx:1.28': ['nginx',
    'RUN rm /etc/nginx/sites-enabled/default && ln -sf /dev/stdout /var/log/nginx/access.log',
    'STOPSIGNAL SIGQUIT', 'CMD ["nginx", "-g", "daemon off;"]'],
  // With a `check`, `findImage` builds this substitute on the local postgres:18, not on Debian.
  'postgres:18': ['postgresql-15', 'ENV PATH=/usr/lib/postgresql/15/bin:$PATH',
    'RUN printf "listen_addresses = \'*\'\\nunix_socket_directories = \'/var/run/postgresql\'\\n"' +
      ' >> /usr/share/postgresql/15/postgresql.conf.sample']
}

/** Returns `name`. If the pull or the shell command `check` fails, returns the name of a substitute. */
export async function findImage (name: string, check?: string): Promise<string> {
  try {
    await run('image', 'inspect', name).catch(() => run('pull', '--quiet', name))
    if (check !== undefined) await run('run', '--rm', '--entrypoint=sh', name, '-c', check)
    return name
  } catch {
    const [program = '', ...lines] = substitutes[name] as string[]
    const substitute = `localhost/${program}:test`
    const install = `apt-get install --yes --no-install-recommends ${program}`
    await build(substitute, [
      `FROM ${check === undefined ? 'debian:bookworm-slim' : name}`,
      `RUN apt-get update && ${install} && rm -rf /var/lib/apt/lists/*`,
      ...lines
    ])
    return substitute
  }
}

/** Creates a network. Removes the network and its containers after the test, even if the test was killed. */
export async function openNetwork (t: Test) {
  const name = createName(t)
  const network = `${name}_default`
  await run('network', 'create', network)
  return {
    start: (...args: string[]) => {
      const networks = args.some(arg => arg.startsWith('--network=')) ? [] : [`--network=${network}`]
      return run('run', '--detach', `--label=com.docker.compose.project=${name}`, ...networks, ...args)
    }
  }
}

/**
 * Opens a Compose project on free ports. `overlays` are names of files in deploy/compose. Removes the project
 * after the test, even if the test was killed.
 */
export async function openProject (t: Test, ...overlays: string[]) {
  const name = createName(t, async () => {
    if (!t.passing()) {
      t.comment(await compose('logs', '--no-color', '--tail=40').catch((error: Error) => error.message))
    }
    // After a failed test, a Compose command may still be creating containers. Wait for the command.
    await pending
  })
  const files = ['docker-compose.yml', ...overlays.map((overlay) => `deploy/compose/${overlay}.yml`)]
  const env: NodeJS.ProcessEnv = {
    ...process.env,
    COMPOSE_PROJECT_NAME: name,
    COMPOSE_FILE: files.map((file) => join(root, file)).join(':'),
    PLANT_STORE_IMAGE: image,
    POSTGRES_IMAGE: await findPostgres(),
    DATABASE_IMAGE: databaseImage,
    ADMIN: 'docker compose exec -T database psql --username=postgres',
    PORT: '127.0.0.1:0'
  }
  let pending: Promise<unknown> = Promise.resolve()
  const compose = (...args: string[]) => {
    const command = docker(['compose', ...args], env)
    pending = Promise.allSettled([pending, command])
    return command
  }
  const network = `${name}_default`
  // Use `docker ps`, because `docker compose ps` takes a second of processor time.
  const containers = async (service: string) => {
    const filters = [`project=${name}`, `service=${service}`]
      .map((label) => `--filter=label=com.docker.compose.${label}`)
    return (await run('ps', '--quiet', ...filters)).split('\n')
  }
  const container = async (service: string) => (await containers(service))[0] ?? ''
  const inside = async (service: string, ...command: string[]) =>
    run('exec', await container(service), ...command)
  const url = async (service = 'plant-store') => urlOf(await container(service))

  return {
    env,
    network,
    compose,
    containers,
    container,
    /** Returns the exit code of a stopped service. The code 137 means that Docker has killed the service. */
    exitCode: async (service: string) =>
      run('inspect', '--format={{.State.ExitCode}}', await compose('ps', '--all', '--quiet', service)),
    url,
    ready: async (service?: string) => waitForStatus(`${await url(service)}/readyz`, 200),
    /** Returns a database URL with the container's address. The host reaches this address only on Linux. */
    async databaseUrl (service: string): Promise<string> {
      const format = `{{(index .NetworkSettings.Networks "${network}").IPAddress}}`
      const address = await run('inspect', `--format=${format}`, await container(service))
      const password = encodeURIComponent(env.DATABASE_PASSWORD ?? 'plants')
      return `postgres://plant_store:${password}@${address}/plant_store`
    },
    inside,
    token: (user: string, service = 'plant-store') =>
      compose('exec', '-T', service, 'plant-store', 'token', 'create', user),
    sh: async (lines: string, environment: NodeJS.ProcessEnv = {}, cwd = root) =>
      (await execute('sh', ['-ec', lines], { cwd, env: { ...env, ...environment } })).stdout,
    /** Runs SQL as the superuser, who can log in only over the socket inside the container. */
    sql: (text: string, database = 'plant_store') => inside('database', 'psql', '--username=postgres',
      `--dbname=${database}`, '--no-align', '--tuples-only', `--command=${text}`),
    healthy: async (service: string) => {
      const command = ['inspect', '--format={{.State.Health.Status}}', await container(service)]
      await until(() => run(...command), (status) => status === 'healthy')
    }
  }
}

/**
 * Returns a name for a project. Starts a shell that removes the project's containers, volumes and network
 * when the shell's input ends. The input ends after the test, even if the test process is killed.
 */
function createName (t: Test, beforeRemoval = async () => {}): string {
  const name = `plant-store-test-${randomBytes(4).toString('hex')}`
  const project = `--filter label=com.docker.compose.project=${name}`
  const remover = spawn('sh', ['-c', `cat
    { docker ps --all --quiet ${project}; docker ps --all --quiet --filter network=${name}_default; } |
      sort --unique | xargs -r docker rm --force --volumes
    docker volume ls --quiet ${project} | xargs -r docker volume rm
    docker network rm ${name}_default`
  ], { detached: true, stdio: ['pipe', 'ignore', 'ignore'] })
  t.teardown(async () => {
    await beforeRemoval()
    remover.stdin.end()
    await once(remover, 'exit')
  })
  return name
}

export const urlOf = async (container: string) =>
  `http://${(await run('port', container, '3000/tcp')).split('\n')[0]}`

export const waitForStatus = (url: string, status: number) =>
  until(() => fetch(url).catch(() => undefined), (response) => response?.status === status)

/** Polls until a value passes the check. Rejects after three minutes: a busy machine needs over one. */
export async function until<T> (poll: () => Promise<T>, check: (value: T) => boolean): Promise<T> {
  for (const end = Date.now() + 180_000; ;) {
    const value = await poll()
    if (check(value)) return value
    if (Date.now() > end) throw new Error(`no change in three minutes: ${inspect(value)}`)
    await delay(100)
  }
}
