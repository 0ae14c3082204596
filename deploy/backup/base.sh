#!/bin/sh
# Copies the database server into /archive every ARCHIVE_HOURS, and keeps the newest ARCHIVE_KEEP copies, the
# base backups. Deletes the write-ahead log that no base backup needs. log.sh archives the log.
. /backup/schedule.sh
kind=base prefix=base- suffix=.tar.gz
hours=$(number ARCHIVE_HOURS "$ARCHIVE_HOURS") || exit
keep=$(number ARCHIVE_KEEP "$ARCHIVE_KEEP") || exit
export PGHOST=/socket PGUSER=postgres

query () { psql --no-psqlrc --quiet --tuples-only --no-align --command="$1"; }

# Each database system has a folder of its own. A restore into a new database begins a new system, whose files
# have the same names.
locate () {
  system=$(query 'select system_identifier from pg_control_system()') && folder=/archive/$system &&
    mkdir -p "$folder"
}

segments () { find "$folder" -maxdepth 1 -name '????????????????????????.gz' "$@"; }

# PostgreSQL archives nothing while there are no writes. Write a message, so that an old archive always means
# a failure.
each_minute () {
  [ "$(newest segments)" -gt $(($(date +%s) - 300)) ] ||
    query "select pg_logical_emit_message(true, 'plant_store', 'archive')" > /dev/null
}

make () {
  # The copy contains no log. So pg_basebackup waits until the log that the copy needs is archived.
  pg_basebackup --format=tar --pgdata=- --compress=1 --wal-method=none --checkpoint=fast > "$1" &&
    tar --list --gzip --file="$1" > /dev/null
}

prune () {
  oldest=$(backups | sort | head --lines=1)
  first=$(tar --extract --gzip --to-stdout --occurrence=1 --file="$oldest" backup_label |
    sed --quiet 's/^START WAL LOCATION: .* (file \([0-9A-F]*\))$/\1/p')
  pg_archivecleanup -x .gz "$folder" "$first"
}

# The log is late after a quarter of an hour, as in deploy/observability/alerts.yml.
healthy () { is_recent $((hours * 2)) && [ "$(newest segments)" -gt $(($(date +%s) - 900)) ]; }

metrics () { echo "plant_store_archive_timestamp_seconds $(newest segments)"; }

run "$1"
