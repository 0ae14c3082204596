#!/bin/sh
# Runs once, when the database's volume is empty. The service's role owns its own database and nothing else;
# the superuser loses its password, so that it gets in only by the socket inside the database's container.
psql --no-psqlrc --set ON_ERROR_STOP=1 <<'SQL'
create role plant_store login;
create database plant_store owner plant_store;
revoke all on database plant_store, postgres, template1 from public;
alter role current_user password null;
SQL
