#!/usr/bin/env bash
# Runs the README's `npm ci --omit=dev && npm start` until the service is ready. Then runs `npm ci && npm test`
# and the system suite. All run in a container that has only Node.
# Usage: npm run test:fresh
set -euo pipefail
cd "$(dirname "$0")/../../.."
# --init adds an init process. Without an init process, orphaned processes would become zombies.
git ls-files -z | tar --create --null --files-from=- |
  docker run --rm --interactive --init --env=CI=true node:26-slim bash -ec '
    mkdir /srv/plant-store && cd /srv/plant-store
    tar --extract --no-same-owner
    npm ci --omit=dev && { npm start >start.log & }
    timeout 60 sh -c "until grep --quiet --no-messages ready start.log; do sleep 0.2; done"
    kill $! && wait $! || true
    npm ci && npm test
    npm run test:system'
