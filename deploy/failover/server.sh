#!/bin/bash
# Runs a server of deploy/compose/failover.yml, which has the host name one or two.
#   server.sh serve     starts PostgreSQL, as the primary or as its standby
#   server.sh ready     is the health check
#   server.sh promote   makes this server the primary
#   server.sh alone     lets commits on this primary not wait for the standby
#   server.sh rebuild   replaces the data of this server with a copy of the primary
set -euo pipefail
self=$HOSTNAME
case $self in one) peer=two ;; *) peer=one ;; esac

fail () { echo "$1" >&2; exit 1; }
query () { psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 --username=postgres "$@"; }
has_data () { [ -e "$PGDATA/PG_VERSION" ]; }
is_standby () { [ -e "$PGDATA/standby.signal" ]; }

# /cluster/primary names the newest timeline and the primary. Each promotion begins a timeline. So a server
# with a newer timeline is the new primary. A server that neither is the primary nor follows it is fenced.
is_primary () {
  timeline='' primary=''
  read -r timeline primary 2> /dev/null < /cluster/primary || return 1
  [ "$primary" = "$self" ] || { [[ $(own_timeline) > $timeline ]] && name_primary; }
}
own_timeline () {
  find "$PGDATA/pg_wal" -name '????????.history' -printf '%.8f\n' 2> /dev/null | sort | tail --lines=1
}
name_primary () {
  local own
  own=$(own_timeline)
  [[ $timeline > $own ]] || timeline=${own:-00000001}
  rm -f /cluster/standby
  echo "$timeline $self" > /cluster/new
  sync /cluster/new
  mv /cluster/new /cluster/primary
}

serve () {
  trap exit INT TERM
  exec 9> /data/lock # held until PostgreSQL has ended
  flock --nonblock 9 || fail "Another container uses the data of $self."
  [ ! -e /data/PG_VERSION ] || fail 'The volume belongs to an older failover.yml (CHANGELOG.md).'
  rm -f /tmp/ready /tmp/has-password
  chown postgres /cluster /data
  local reason said=''
  until may_start; do
    [ "$reason" = "$said" ] || echo "$reason" >&2
    said=$reason
    sleep 1
  done
  # The standby logs in with PGPASSWORD. The primary ignores primary_conninfo.
  exec docker-entrypoint.sh postgres -c wal_keep_size=1GB \
    -c primary_conninfo="host=$peer user=postgres application_name=$self"
}

# Only the first start of `one` may create an empty database. If PostgreSQL must not start, sets `reason`.
may_start () {
  if is_primary; then
    has_data && return
    reason="The data of the primary $self are lost: promote $peer."
  elif is_standby; then
    return
  elif has_data; then
    reason="$self is fenced, because ${primary:-no server} is the primary: rebuild $self (docs/runbook.md)."
  elif [ -n "$primary" ]; then
    reason=$(copy 2>&1) && return
    reason="No copy of the primary $peer: $reason"
  else
    [ "$self" != one ] || return 0
    reason="$self waits for the first start of one."
  fi
  return 1
}

# After a promotion, commits must not wait for a standby that does not exist yet.
wait_for_none () { echo "synchronous_standby_names = ''" >> "$1/postgresql.auto.conf"; }

# Makes this server a standby. The old data stay until the copy is complete.
copy () {
  [ "$(query --host="$peer" --command='select pg_is_in_recovery()')" = f ] &&
    rm -rf /data/copy /data/old &&
    pg_basebackup --dbname="host=$peer user=postgres" --pgdata=/data/copy --checkpoint=fast &&
    wait_for_none /data/copy &&
    touch /data/copy/standby.signal && chown -R postgres: /data/copy &&
    { [ ! -e "$PGDATA" ] || mv "$PGDATA" /data/old; } && mv /data/copy "$PGDATA" && rm -rf /data/old
}

ready () {
  pg_isready --host=127.0.0.1 --username=postgres --quiet
  # An old primary that was frozen or cut off ends here. Its container starts again, and finds itself fenced.
  is_standby || is_primary || [ "$primary" != "$peer" ] || kill -QUIT 1
  if is_standby; then
    join
  elif [ ! -e /tmp/ready ]; then
    export PGOPTIONS='-c synchronous_commit=local' # the standby may be away
    query --set=password="$POSTGRES_PASSWORD" <<< "alter role postgres password :'password'"
    sh /database-ready.sh
    touch /tmp/ready
  fi
}

# /cluster/standby names the standby that commits wait for. Only this standby has all acknowledged writes.
is_synchronous () { [ -z "$SYNC" ] || [ "$(cat /cluster/standby 2> /dev/null)" = "$self" ]; }
wait_for () {
  query "${@:2}" --command="alter system set synchronous_standby_names = '$1'" \
    --command='select pg_reload_conf()' > /dev/null
}

# Makes commits wait for this standby, unless SYNC is empty. Fails until they do.
join () {
  [ "$(query --command='select status from pg_stat_wal_receiver')" = streaming ]
  if [ "$(query --host="$peer" --command='show synchronous_standby_names')" != "${SYNC:+$self}" ]; then
    rm -f /cluster/standby
    wait_for "${SYNC:+$self}" --host="$peer"
    [ -z "$SYNC" ] # the next check continues, because the primary reloads its settings later
  elif ! is_synchronous; then
    [ "$(query --host="$peer" --command="select sync_state from pg_stat_replication
      where application_name = '$self'")" = sync ]
    # This commit ends when the standby has all earlier commits.
    query --host="$peer" --command="select pg_logical_emit_message(true, 'plant_store', 'join')" > /dev/null
    echo "$self" > /cluster/standby
  fi
}

alone () {
  ! is_standby && is_primary || fail "$self is not the primary."
  rm -f /cluster/standby
  sync /cluster
  wait_for ''
}

promote () {
  local state=0
  # 2 means that there is no response.
  pg_isready --host="$peer" --username=postgres --quiet || state=$?
  [ "$state" -ge 2 ] || fail "$peer still runs. Stop it first: docker compose kill $peer"
  if is_standby; then
    is_synchronous || [ "${1-}" = despite-loss ] ||
      fail "$self may lack acknowledged writes. If $peer is lost for good, add despite-loss."
    [ "$(query --command='select pg_promote()')" = t ] || fail "PostgreSQL did not promote $self."
    is_primary || name_primary
  elif is_primary; then
    echo "$self is the primary already."
  elif [ "${1-}" = despite-loss ] && has_data; then
    wait_for_none "$PGDATA"
    name_primary
  else
    fail "$self lacks the writes since $peer took over. If $peer is lost for good, add despite-loss."
  fi
}

rebuild () {
  exec 9> /data/lock
  flock --nonblock 9 || fail "$self still runs. Stop it first: docker compose stop $self"
  is_standby || ! is_primary || fail "$self is the primary."
  copy
}

"$@"
