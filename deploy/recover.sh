#!/bin/sh
# Recovers a stopped database server from a stanza of pgBackRest (docs/runbook.md):
#   recover.sh <stanza> [<moment>]
# Recovers in a new folder, and replaces the data only after a success.
set -eu
stanza=$1 moment=${2-} new=$PGDATA.new
fail () { echo "$1" >&2; exit 1; }
as_postgres () {
  if [ "$(id --user)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --init-groups "$@"; else "$@"; fi
}

# The recovered database begins a history of its own, so it needs a stanza of its own.
pgbackrest info --output=json | jq --exit-status '.[0].status.message == "missing stanza path"' > /dev/null ||
  fail "Set STANZA in .env to a new name first, not $PGBACKREST_STANZA."
require_stopped () {
  # `pg_isready` returns 2 or more if the server does not respond.
  pg_isready --host=database --quiet && state=0 || state=$?
  [ "$state" -ge 2 ] || fail 'The database still runs. Stop it first: docker compose stop'
}
require_stopped

mkdir -p "$(dirname "$PGDATA")"
# When a terminal is closed, Docker lets the container go on.
exec 9< "$(dirname "$PGDATA")"
flock --nonblock 9 || fail 'Another recovery still runs. `docker ps` shows its container.'
rm -rf "$new"
trap 'rm -rf "$new"' EXIT
trap 'exit 1' HUP INT TERM
install --directory --mode=700 --owner=postgres "$new"
pgbackrest restore --stanza="$stanza" --pg1-path="$new" \
  ${moment:+--type=time --target-action=promote "--target=$moment"}

log=/tmp/recovery.log
give_up () {
  cat $log >&2
  fail 'The recovery failed and changed nothing. If it "ended before configured recovery target was reached",
the archive ends earlier: choose an earlier moment, or none for as much as there is.'
}
as_postgres touch $log
# Nothing goes into an archive. Without standby connections, `pg_isready` waits for the end of the recovery.
options='-c listen_addresses= -c unix_socket_directories=/tmp -c hot_standby=off -c archive_mode=off'
as_postgres pg_ctl start --pgdata="$new" --silent --log=$log --options="$options" || give_up
until pg_isready --host=/tmp --quiet; do
  sleep 1
  as_postgres pg_ctl status --pgdata="$new" > /dev/null || give_up
done
as_postgres pg_ctl stop --pgdata="$new" --silent --timeout=3600
grep --only-matching 'last completed transaction.*' $log || true

# Meanwhile somebody may have started the database.
require_stopped
trap '' HUP INT TERM
if [ -e "$PGDATA" ]; then
  old=$PGDATA.$(date -u +%Y%m%dT%H%M%SZ)
  mv "$PGDATA" "$old"
  echo "The old data are in $old."
fi
mv "$new" "$PGDATA"
