#!/bin/sh
# Runs once, when the data directory is empty. The role of the service owns only its own database.
psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --set=password="$POSTGRES_PASSWORD" --username=postgres <<'SQL'
create role plant_store login password :'password';
create database plant_store owner plant_store;
revoke all on database plant_store, postgres, template1 from public;
SQL
