#!/usr/bin/env bash
# The README's `npm ci && npm test` where nothing is installed but Node: npm run test:fresh
set -euo pipefail
cd "$(dirname "$0")/../../.."
# --init, as every machine has one: without it whoever lost its parent is never seen to have ended.
git ls-files -z | tar --create --null --files-from=- |
  docker run --rm --interactive --init --env=CI=true node:24-slim bash -ec '
    mkdir /srv/plant-store && cd /srv/plant-store
    tar --extract --no-same-owner
    npm ci && npm test'
