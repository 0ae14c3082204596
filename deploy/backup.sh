#!/bin/sh
# Runs beside a database server. Each minute, while the server is the primary, the script writes metrics, and
# makes a backup if one is due. It never creates the stanza: while the disk of the backups is not mounted, the
# archive must fail, and not begin anew in an empty folder. `backup.sh verify` verifies all backups and the
# archive, and fails at damage.
query () { psql --no-psqlrc --tuples-only --no-align --host=/socket --username=postgres --command="$1"; }

# Prints the type of the backup that is due, if any: a full one each week, an incremental one each day. A new
# timeline begins after a failover. The log around its beginning may be missing, so it needs a backup of its own.
due () {
  jq --raw-output --arg timeline "$1" '.[0].backup
    | (map(select(.type == "full")) | last | .timestamp.start // 0) as $full
    | if now - $full > 7 * 86400 then "full"
      elif now - last.timestamp.start > 86400 or last.archive.start[:8] != $timeline then "incr"
      else empty end'
}

verify () {
  log=$(pgbackrest verify --output=text --log-level-console=detail) || return
  # pgBackRest reports damage as a status, and a missing segment only as a second range of a timeline.
  echo "$log" | grep --invert-match ' INFO: \| DETAIL: ' >&2 && return 1
  gap=$(echo "$log" | grep --only-matching 'wal start: [0-9A-F]\{8\}' | sort | uniq --repeated)
  [ -z "$gap" ] || { echo "$log" | grep 'wal start' >&2; echo 'segments of the log are missing' >&2; return 1; }
}

if [ "${1-}" = verify ]; then
  verify
  exit
fi

file=/metrics/$HOSTNAME
while true; do
  until pg_isready --host=/socket --quiet; do
    rm -f "$file.prom"
    sleep 5
  done
  # The name of the current segment begins with the timeline. This fails on a standby.
  if segment=$(query 'select pg_walfile_name(pg_current_wal_lsn())' 2> /tmp/error); then
    type=$(pgbackrest info --output=json | due "$(echo "$segment" | cut --characters=1-8)")
    [ -z "$type" ] || { pgbackrest backup --type="$type" && echo "made a backup ($type)"; }
    newest=$(pgbackrest info --output=json | jq '.[0].backup | last.timestamp.stop // 0')
    # Without a backup there is nothing to verify.
    if [ "$newest" = 0 ]; then
      verified=
    elif [ "$newest" != "${checked-}" ]; then
      verify && verified=1 || verified=0
    fi
    checked=$newest
    cat > "$file" <<METRICS
plant_store_backup_timestamp_seconds{server="$HOSTNAME"} $newest
plant_store_archive_delay_seconds{server="$HOSTNAME"} $(query "select coalesce(max(extract(epoch from now() - modification)), 0)
  from pg_ls_archive_statusdir() where name like '%.ready'")
METRICS
    [ -z "$verified" ] || printf 'plant_store_backup_verified{server="%s"} %s\n' "$HOSTNAME" "$verified" >> "$file"
    mv "$file" "$file.prom"
  else
    rm -f "$file.prom"
    grep --quiet 'recovery is in progress' /tmp/error || cat /tmp/error >&2
  fi
  sleep 60
done
