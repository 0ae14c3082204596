# Makes backups on a schedule, verifies them and deletes old ones. dump.sh and base.sh include this file. They
# set `kind` (for the metrics), `hours` (between two backups), `keep` (how many), and `prefix` and `suffix`
# (around the time in a backup's name). They define `make`, which makes and verifies a backup. They may
# define:
locate () { folder=/backups; } # sets the folder of the backups
each_minute () { :; }
prune () { :; } # runs after each backup
healthy () { is_recent $((hours * 2)); }
metrics () { :; } # prints more metrics

umask 077

# Checks and prints a number. The shell's arithmetic would end the command at 0.5, 12h and 08.
number () {
  case $2 in
    '' | 0* | *[!0-9]* | ?????*)
      echo "$1 must be a whole number from 1 to 9999 without a unit, not '$2'" >&2
      exit 1
      ;;
  esac
  echo "$2"
}

# Runs `find` on the backups. Only complete and verified backups have these names.
backups () { find "$folder" -maxdepth 1 -name "$prefix????????T??????Z$suffix" "$@"; }

# Prints when the newest of the files was written, in seconds since 1970, or 0. Ignores times in the future,
# which a wrong clock has left: otherwise there would be no backup until that time.
newest () {
  newest=$("$@" ! -newermt now -printf '%T@\n' | sort --numeric-sort | tail --lines=1)
  newest=${newest%.*}
  echo "${newest:-0}"
}

# Tells whether the newest backup was made within these hours.
is_recent () { [ "$(newest backups)" -gt $(($(date +%s) - $1 * 3600)) ]; }

# A failed backup changes no other backup.
back_up () {
  # Delete what interrupted backups left. `once` may run beside the schedule, so keep recent files.
  find "$folder" -maxdepth 1 -name "$prefix*.part" -mmin +1440 -delete
  file=$folder/$prefix$(date -u +%Y%m%dT%H%M%SZ)$suffix
  part=$file.$HOSTNAME.part
  if make "$part" && sync "$part" && mv "$part" "$file"; then
    echo "stored $file"
    # A wrong clock may have left backups from the future. They must not replace this backup.
    backups ! -newer "$file" ! -path "$file" | sort --reverse | tail --lines="+$keep" |
      xargs --no-run-if-empty rm --force
    prune
  else
    rm -f "$part"
    echo "the backup failed; $(backups | wc --lines) older ones are unchanged" >&2
    return 1
  fi
}

# Writes the metrics for the node exporter (docs/monitoring.md).
publish () {
  {
    echo "plant_store_backup_timestamp_seconds{kind=\"$kind\"} $(newest backups)"
    echo "plant_store_backup_interval_seconds{kind=\"$kind\"} $((hours * 3600))"
    metrics
  } > "/metrics/$kind" && chmod 644 "/metrics/$kind" && mv "/metrics/$kind" "/metrics/$kind.prom"
}

case ${1-} in
  '' | once | healthy) ;;
  *)
    echo "expected no argument, once or healthy, not '$1'" >&2
    exit 1
    ;;
esac

# `once` makes a backup now. `healthy` fails if a backup is late. Without an argument, makes a backup when
# none is recent. So a restart makes no extra backup, and a failed backup is repeated after a minute.
run () {
  case $1 in
    once) locate && back_up ;;
    healthy) locate && healthy ;;
    *)
      while true; do
        if locate; then
          each_minute
          is_recent "$hours" || back_up
          publish
        fi
        sleep 60
      done
      ;;
  esac
}
