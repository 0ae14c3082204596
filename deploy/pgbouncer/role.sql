-- Runs once, after create-role.sh. PgBouncer ignores the timeout that the service sends, and cannot keep
-- settings of a session: see docs/scaling.md.
alter role plant_store set statement_timeout = '5s';
alter role plant_store set enable_seqscan = off;
alter role plant_store set enable_bitmapscan = off;
alter role plant_store set client_connection_check_interval = '500ms';
