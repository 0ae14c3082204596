#!/bin/bash
# Runs once, when the primary's volume is empty.
# Commits must not wait for the standby, which does not exist yet.
export PGOPTIONS='-c synchronous_commit=local'
psql --no-psqlrc --set ON_ERROR_STOP=1 --set password="$POSTGRES_PASSWORD" --username postgres <<'SQL'
create role plant_store login password :'password';
create database plant_store owner plant_store;
revoke all on database plant_store, postgres, template1 from public;
SQL
echo 'host replication postgres samenet scram-sha-256' >>"$PGDATA/pg_hba.conf"
