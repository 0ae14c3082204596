import { sql } from '../../support/database.ts'

/**
 * A committed change of the plant `name`, or the revocation of a user's token. `session` is the
 * `application_name` of the session that made the change. `at` is the time of the commit, in ms since 1970.
 */
export interface Effect {
  user: string, kind: 'create' | 'delete' | 'revoke', name: string, session: string, at: number
}

/** Creates triggers that record every effect. */
export async function recordEffects (url: string): Promise<void> {
  await sql(url, `
    create table effects (
      username text, kind text, name text, session text default current_setting('application_name')
    );
    create function record_effect() returns trigger language plpgsql as $$
    begin
      insert into effects
        select coalesce(changed->>'owner', changed->>'username'), tg_argv[0], coalesce(changed->>'name', '')
        from to_jsonb(coalesce(new, old)) changed;
      return null;
    end $$;
    create trigger created after insert on plants for each row execute function record_effect('create');
    create trigger deleted after delete on plants for each row execute function record_effect('delete');
    create trigger revoked after update of revoked_at on tokens
      for each row execute function record_effect('revoke')`)
}

/** Needs the PostgreSQL setting `track_commit_timestamp`. */
export async function readEffects (url: string): Promise<Effect[]> {
  return await sql(url, `select username as user, kind, name, session,
    extract(epoch from pg_xact_commit_timestamp(xmin))::float8 * 1000 as at
    from effects`) as unknown as Effect[]
}
