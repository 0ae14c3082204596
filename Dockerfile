# Usage: docker run IMAGE [serve | migrate | token create alice]. Inside a container: plant-store [command].
# To build between releases, pass another version: --build-arg VERSION=1.1.1-dev.$(git rev-parse --short HEAD)
ARG VERSION=1.1.1-dev

FROM node:26-slim AS packages
WORKDIR /app
COPY package.json package-lock.json ./
# No package of the image needs an install script. The optional packages are Node and PostgreSQL for a checkout.
RUN npm ci --omit=dev --omit=optional --ignore-scripts --no-audit --no-fund \
 # Remove types and source maps, which are more than half of node_modules.
 && find node_modules -type f -regex '.*\.\(map\|d\.[cm]?ts\)' -delete
ARG VERSION
RUN npm pkg set version="$VERSION"

FROM node:26-slim AS app
# All of /app belongs to root, so the service cannot change its own code.
WORKDIR /app
# Layers that rarely change come first. So an upgrade transfers only a few kilobytes.
COPY --from=packages /app/node_modules node_modules
COPY --from=packages /app/package.json ./
COPY migrations migrations
COPY src src
# With a umask such as 077, only the owner can read the files of a checkout.
RUN find package.json migrations src ! -perm -444 -exec chmod a+rX {} + \
 && ln -s /app/src/main.ts /usr/local/bin/plant-store

# A compile cache saves a quarter of the start time and 20 MiB of memory. Node caches only code that has run,
# so the build runs the service without a database. Node keeps a cache for each user id.
FROM app AS compiled
ENV NODE_COMPILE_CACHE=/tmp/compile-cache
USER 1000:1000
RUN export DATABASE_URL=postgres://127.0.0.1/none DRAIN_DELAY=0; src/main.ts >/tmp/log & \
    timeout 60 sh -c 'until grep --quiet "next attempt" /tmp/log; do sleep 0.1; done' \
 && kill $! && wait $! && chmod -R a+rX $NODE_COMPILE_CACHE

FROM app
ARG VERSION
# Pass other labels at build time: docker build --label org.opencontainers.image.revision=…
LABEL org.opencontainers.image.title="plant-store" \
      org.opencontainers.image.description="Keeps plants: an HTTP JSON service on Fastify and PostgreSQL" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.base.name="docker.io/library/node:26-slim"
ENV NODE_ENV=production HOST=:: NODE_COMPILE_CACHE=/app/.compile-cache
# By default glibc keeps freed memory, for example 200 MiB after 1,500 large bodies. With this variable, glibc
# returns freed blocks of more than 16,384 bytes to the system. Other C libraries ignore the variable.
ENV MALLOC_MMAP_THRESHOLD_=16384
COPY --from=compiled --chown=0:0 /tmp/compile-cache .compile-cache
# The user is a number, because Kubernetes' runAsNonRoot cannot check a name.
USER 1000:1000
EXPOSE 3000
HEALTHCHECK --interval=5s --timeout=10s --start-period=10s --retries=2 \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.PORT || 3000}/readyz`).then(({ ok }) => process.exit(ok ? 0 : 1))"]
# The first line of main.ts names V8's options. So the options also fit the compile cache.
ENTRYPOINT ["/app/src/main.ts"]
CMD ["serve"]
