-- When the token was last used, to the minute. A new token has the time of its creation here. A token from
-- before this migration has the time of the migration, because its earlier uses are unknown.
alter table tokens add column last_used_at timestamptz not null default now();
