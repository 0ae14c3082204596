create table tokens (
  -- The SHA-256 of the token. The token itself is not stored.
  hash bytea primary key constraint tokens_hash_length check (octet_length(hash) = 32),
  -- Operators name the token by its id, which does not reveal the token.
  id text not null generated always as (left(encode(hash, 'hex'), 16)) stored,
  username text not null constraint tokens_username_length check (char_length(username) between 1 and 255),
  label text,
  read_only boolean not null default false,
  created_at timestamptz not null default now(),
  -- Null if the token never expires.
  expires_at timestamptz,
  -- Revoked tokens are kept, so that operators can trace a leaked token.
  revoked_at timestamptz
);

create index tokens_username on tokens (username);
