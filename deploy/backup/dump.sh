#!/bin/sh
# Dumps the database into /backups every BACKUP_HOURS, and keeps the newest BACKUP_KEEP dumps.
. /backup/schedule.sh
kind=dump prefix=scheduled- suffix=.dump
hours=$(number BACKUP_HOURS "$BACKUP_HOURS") || exit
keep=$(number BACKUP_KEEP "$BACKUP_KEEP") || exit

make () {
  # pg_restore reads the whole dump, and fails if the dump is truncated.
  pg_dump --dbname="$DATABASE_URL" --format=custom --file="$1" && pg_restore --file=/dev/null "$1" &&
    has_tables "$1"
}

# A dump from before the first migration is empty. Such a dump would be the only one for BACKUP_HOURS.
has_tables () {
  pg_restore --list "$1" | grep --quiet ' TABLE DATA .* tokens ' || {
    echo 'the database has no table "tokens": see that the service has started' >&2
    return 1
  }
}

# After a restore, tokens are valid that were revoked after the backup (docs/runbook.md). So add the ids of
# revoked tokens to a list. A restore does not shorten the list.
each_minute () {
  list=/backups/revoked.txt
  touch "$list" &&
    psql "$DATABASE_URL" --no-psqlrc --quiet --tuples-only --no-align \
      --command='select id from tokens where revoked_at is not null' |
    sort --unique --output="$list.part" - "$list" && mv "$list.part" "$list"
}

run "$1"
