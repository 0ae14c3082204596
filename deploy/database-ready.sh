#!/bin/sh
# The health check of the database. The first successful check after each start sets the password of the role
# DATABASE_USER to DATABASE_PASSWORD, and those of Patroni's roles to CLUSTER_PASSWORD. It creates roles that the
# database lacks. Later checks find a file in /tmp.
set -e
# Check over TCP. The first start runs a temporary server, which listens only on the socket.
pg_isready --host=127.0.0.1 --username=plant_store --quiet
[ -e /tmp/has-password ] && exit
DATABASE_USER=${DATABASE_USER:-plant_store} # a container that version 1.0.0 created has no such variable
if [ "$DATABASE_USER" = postgres ]; then
  echo 'DATABASE_USER must not be the superuser' >&2
  exit 1
fi
# Patroni's standby copies the roles of the primary.
standby=$(psql --no-psqlrc --tuples-only --no-align --username=postgres --command='select pg_is_in_recovery()')
[ "$standby" = f ] || exit 0
psql --no-psqlrc --quiet --username=postgres --set=ON_ERROR_STOP=1 --set=cluster="${PATRONI_SUPERUSER_PASSWORD-}" \
  --set=user="$DATABASE_USER" --set=password="$POSTGRES_PASSWORD" <<'SQL'
select format('create role %I login in role plant_store', :'user')
  where not exists (select from pg_roles where rolname = :'user') \gexec
select format('alter role %I set role plant_store', :'user') where :'user' <> 'plant_store' \gexec
alter role :"user" password :'password';
-- Without Patroni, the superuser can log in only over the socket inside the container.
alter role postgres password :'cluster';
select 'create role replicator login replication'
  where :'cluster' <> '' and not exists (select from pg_roles where rolname = 'replicator') \gexec
select format('alter role replicator password %L', :'cluster') where :'cluster' <> '' \gexec
-- Lets the runbook's queries show the sessions of all roles.
grant pg_read_all_stats to plant_store;
-- After a start, archive_timeout has no effect until something wakes PostgreSQL's checkpointer. Without
-- this reload that may take checkpoint_timeout.
select pg_reload_conf() \g /dev/null
SQL
touch /tmp/has-password
