#!/bin/sh
# The health check of the database. Its first success after a start, when /tmp is empty, sets the role's password
# from .env. So a changed DATABASE_PASSWORD applies to service and database together.
set -e
# Over TCP, because on a first start a temporary server listens on the socket.
pg_isready --host=127.0.0.1 --username=plant_store --quiet
[ -e /tmp/has-password ] && exit
psql --no-psqlrc --quiet --username=postgres --set ON_ERROR_STOP=1 --set password="$POSTGRES_PASSWORD" <<'SQL'
alter role plant_store password :'password';
SQL
touch /tmp/has-password
