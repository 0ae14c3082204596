#!/bin/sh
# Archives PostgreSQL's write-ahead log in /archive, and recovers the database server from the archive.
#   log.sh store <path> <name>            is PostgreSQL's archive_command
#   log.sh fetch <folder> <name> <path>   is PostgreSQL's restore_command
#   log.sh recover [<moment>]             replaces the data directory (docs/runbook.md)
set -eu

fail () { echo "$1" >&2; exit 1; }

store () {
  umask 077
  # Each database system has a folder of its own. A restore into a new database begins a new system, whose
  # files have the same names.
  system=$(LC_ALL=C pg_controldata --pgdata=. | sed --quiet 's/^Database system identifier: *//p')
  [ -n "$system" ] || fail 'pg_controldata prints no system identifier'
  folder=/archive/$system
  file=$folder/$2.gz
  mkdir -p "$folder"
  if [ -e "$file" ]; then
    # After a crash, PostgreSQL may archive a file again.
    gunzip --stdout "$file" | cmp --quiet - "$1" || fail "$file exists with other content"
    return
  fi
  # A file gets its final name after the sync. So after a crash no incomplete file has a final name.
  gzip --fast --stdout "$1" > "$file.part"
  sync "$file.part"
  mv "$file.part" "$file"
  sync "$folder"
}

fetch () {
  # For PostgreSQL, exit codes up to 125 mean the end of the archive. A higher code ends the recovery.
  [ -e "$1/." ] || exit 126
  [ -e "$1/$2.gz" ] || exit 1
  gunzip --stdout "$1/$2.gz" > "$3" || exit 126
}

# Recovers the server in a new folder, and replaces the data directory only after a success.
recover () {
  # `pg_isready` returns 2 if the server does not respond.
  pg_isready --host=database --quiet && state=0 || state=$?
  [ "$state" -ge 2 ] || fail 'The database still runs. Stop it first: docker compose stop'
  exec 9< "$(dirname "$(dirname "$PGDATA")")"
  flock --nonblock 9 || fail 'Another recovery runs.'

  moment=
  if [ -n "${1-}" ]; then
    moment=$(date --utc --date="$1" '+%F %T.%6N+00') ||
      fail "Expected a moment such as '2027-01-31 14:05:00+00'."
    [ "$(date --date="$moment" +%s)" -le "$(date +%s)" ] || fail "$moment is in the future."
    # The base backup and the timeline are the newest that existed at the moment. Later recoveries began later
    # timelines, without the writes that those recoveries removed.
    set -- ! -newermt "$moment"
  else
    set --
  fi
  # A wrong clock may have left base backups from the future.
  base=$(find /archive -mindepth 2 -maxdepth 2 -name 'base-????????T??????Z.tar.gz' \
    ! -newermt now "$@" -printf '%f %p\n' | sort | tail --lines=1 | cut --delimiter=' ' --fields=2)
  [ -n "$base" ] || fail "There is no base backup${moment:+ that was complete at $moment}."
  folder=$(dirname "$base")
  timeline=$(find "$folder" -maxdepth 1 -name '????????.history.gz' "$@" -printf '0x%.8f\n' |
    sort | tail --lines=1)
  timeline=${timeline:-current}
  echo "Recovers ${moment:-all writes} from $base, timeline $timeline."

  new=$PGDATA.new
  trap 'rm -rf "$new"' EXIT
  trap 'exit 1' HUP INT TERM
  rm -rf "$new"
  mkdir -p "$(dirname "$PGDATA")"
  mkdir -m 700 "$new"
  tar --extract --gzip --file="$base" --directory="$new"
  touch "$new/recovery.signal"
  chown -R postgres: "$new"
  run_recovery

  # A new base backup contains these settings, so remove nothing from the configuration here.
  if [ -e "$PGDATA" ]; then
    old=$PGDATA.$(date -u +%Y%m%dT%H%M%SZ)
    mv "$PGDATA" "$old"
    echo "The old data are in $old."
  fi
  mv "$new" "$PGDATA"
  trap - EXIT
}

as_postgres () { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }

# Starts PostgreSQL on the folder `new`, waits for the end of the recovery, and stops PostgreSQL.
run_recovery () {
  # With standby connections, the recovery would stop if max_connections was larger before.
  options="-c listen_addresses= -c hot_standby=off -c recovery_target_action=promote
    -c archive_mode=on -c archive_command='sh /backup/log.sh store %p %f'
    -c restore_command='sh /backup/log.sh fetch $folder %f %p'
    -c recovery_target_time='$moment' -c recovery_target_timeline=$timeline"
  log=/tmp/recovery.log
  rm -f $log
  as_postgres touch $log
  tail --follow --lines=+1 $log |
    grep --line-buffered --invert-match 'accepting connections\|Hot standby' >&2 &
  as_postgres pg_ctl start --pgdata="$new" --silent --log=$log --options="$(echo $options)" || give_up
  until pg_isready --quiet; do
    sleep 1
    as_postgres pg_ctl status --pgdata="$new" > /dev/null || give_up
  done
  as_postgres pg_ctl stop --pgdata="$new" --silent --timeout=600
  sed --quiet 's/.*LOG:  \(last completed transaction.*\)/The \1./p' $log
}

give_up () {
  sleep 1 # until the output has the end of the log
  fail 'The recovery failed and changed nothing. If it "ended before configured recovery target was reached",
the archive ends earlier: choose an earlier moment, or none for as much as there is.'
}

command=$1
shift
"$command" "$@"
