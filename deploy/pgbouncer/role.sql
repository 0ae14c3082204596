-- PgBouncer ignores what the service asks for. Runs once, after create-role.sh.
alter role plant_store set statement_timeout = '5s';
