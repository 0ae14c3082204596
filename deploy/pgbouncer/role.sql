-- Runs once, after create-role.sh. PgBouncer ignores the timeout that the service sends.
alter role plant_store set statement_timeout = '5s';
