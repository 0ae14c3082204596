#!/bin/sh
# Backs up the database into /backups every BACKUP_HOURS. `backup.sh once` makes one backup now. Keeps the
# newest BACKUP_KEEP backups with the prefix scheduled-. A failed backup leaves the other backups unchanged.
umask 077

backup () {
  # Delete what interrupted backups left. `once` may run beside the schedule, so keep recent files.
  find /backups -name 'scheduled-*.part' -mmin +1440 -delete
  file=/backups/scheduled-$(date -u +%Y%m%dT%H%M%SZ).dump
  # pg_restore reads the whole dump, and fails if the dump is truncated.
  if pg_dump --dbname="$DATABASE_URL" --format=custom --file="$file.part" &&
    pg_restore --file=/dev/null "$file.part" && sync "$file.part" && mv "$file.part" "$file"
  then
    echo "stored $file"
    # `ls -r` lists the newest backup first.
    ls -r /backups/scheduled-*.dump | tail -n "+$((BACKUP_KEEP + 1))" | xargs -r rm
  else
    rm -f "$file.part"
    echo "the backup failed; $(ls /backups | grep -c 'dump$') older ones are unchanged" >&2
    return 1
  fi
}

[ "$1" = once ] && { backup; exit; }
while true; do
  # Back up when no backup is newer than BACKUP_HOURS. So a restart makes no extra backup, and a failed backup
  # is retried after a minute.
  find /backups -name 'scheduled-*.dump' -mmin "-$((BACKUP_HOURS * 60))" | grep -q . || backup
  sleep 60
done
