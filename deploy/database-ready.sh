#!/bin/sh
# The health check of the database. The first successful check after each start sets the role's password to
# DATABASE_PASSWORD. Later checks find a file in /tmp and leave the password alone. A start empties /tmp.
set -e
# Check over TCP. The first start runs a temporary server, which listens only on the socket.
pg_isready --host=127.0.0.1 --username=plant_store --quiet
[ -e /tmp/has-password ] && exit
psql --no-psqlrc --quiet --username=postgres --set ON_ERROR_STOP=1 --set password="$POSTGRES_PASSWORD" <<'SQL'
alter role plant_store password :'password';
SQL
touch /tmp/has-password
