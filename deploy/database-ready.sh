#!/bin/sh
# Whether the database is healthy. At its first success after a start, when /tmp is empty, the service's role gets
# the password of .env: a changed DATABASE_PASSWORD is in force for both sides or for none.
set -e
# By TCP: on a first start a temporary server answers on the socket before the real one is there.
pg_isready --host=127.0.0.1 --username=plant_store --quiet
[ -e /tmp/has-password ] && exit
psql --no-psqlrc --quiet --username=postgres --set ON_ERROR_STOP=1 --set password="$POSTGRES_PASSWORD" <<'SQL'
alter role plant_store password :'password';
SQL
touch /tmp/has-password
