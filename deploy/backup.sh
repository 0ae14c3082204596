#!/bin/sh
# Backs up the database into /backups: `backup.sh once`, or without an argument every BACKUP_INTERVAL seconds.
# Keeps the newest BACKUP_KEEP backups. A failed backup never removes or replaces an older one.
umask 077

backup () {
  file=/backups/plants-$(date -u +%Y%m%dT%H%M%SZ).dump
  # pg_restore reads the whole dump, so it notices a truncated one.
  if pg_dump --dbname="$DATABASE_URL" --format=custom --file="$file.part" &&
    pg_restore --file=/dev/null "$file.part" && sync "$file.part" && mv "$file.part" "$file"
  then
    echo "stored $file"
    # The name is a date, so the newest come first.
    ls -r /backups/plants-*.dump | tail -n "+$((BACKUP_KEEP + 1))" | xargs -r rm
  else
    rm -f "$file.part"
    echo "backup failed, kept $(ls /backups | grep -c 'dump$') older ones" >&2
    return 1
  fi
}

[ "$1" = once ] && { backup; exit; }
while true; do
  # A failed backup is repeated after a minute.
  if backup; then sleep "$BACKUP_INTERVAL"; else sleep 60; fi
done
