#!/bin/bash
# Runs once, at the first start of the primary. The last line marks the end: after an interruption, server.sh
# does not start this server.
psql --no-psqlrc --set ON_ERROR_STOP=1 --set password="$POSTGRES_PASSWORD" --username postgres <<'SQL'
create role plant_store login password :'password';
create database plant_store owner plant_store;
revoke all on database plant_store, postgres, template1 from public;
SQL
echo 'host replication postgres samenet scram-sha-256' >> "$PGDATA/pg_hba.conf"
echo "00000001 $HOSTNAME" > /cluster/primary
