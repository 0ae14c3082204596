#!/bin/sh
# Runs once, when the database's volume is empty. The role of the service owns only its own database. The
# superuser loses its password, and can log in only over the socket inside the container.
psql --no-psqlrc --set ON_ERROR_STOP=1 <<'SQL'
create role plant_store login;
create database plant_store owner plant_store;
revoke all on database plant_store, postgres, template1 from public;
alter role current_user password null;
SQL
