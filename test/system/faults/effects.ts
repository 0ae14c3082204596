import { sql } from '../../support/database.ts'

/** A committed change of a plant, or the revocation of a user's token. */
export interface Effect {
  user: string
  kind: 'create' | 'delete' | 'revoke'
  /** The plant's name. Empty for a revocation. */
  name: string
  /** The `application_name` of the session that made the change. */
  session: string
  /** The time of the commit, in ms since 1970. */
  at: number
}

/** Creates triggers that record every effect. */
export async function recordEffects (url: string): Promise<void> {
  await sql(url, `
    create table effects (
      username text, kind text, name text, session text default current_setting('application_name')
    );
    create function record_effect() returns trigger language plpgsql as $$
    begin
      if tg_table_name = 'tokens' then
        insert into effects values (new.username, 'revoke', '');
      elsif tg_op = 'INSERT' then
        insert into effects values (new.owner, 'create', new.name);
      else
        insert into effects values (old.owner, 'delete', old.name);
      end if;
      return null;
    end $$;
    create trigger changed after insert or delete on plants for each row execute function record_effect();
    create trigger revoked after update on tokens for each row execute function record_effect()`)
}

/** Needs the PostgreSQL setting `track_commit_timestamp`. */
export async function readEffects (url: string): Promise<Effect[]> {
  const rows = await sql(url, `select username as user, kind, name, session,
    extract(epoch from pg_xact_commit_timestamp(xmin))::float8 * 1000 as at from effects`)
  return rows as unknown as Effect[]
}
