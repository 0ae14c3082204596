-- Up Migration

-- No sequence, foreign key, trigger or key across owners, and every statement
-- names the owner: the table can be distributed by owner (Citus) as it is.
create table plants (
  -- The user the plant belongs to. Bytewise order is the same on every server
  -- and is the order in which batches lock their rows.
  owner text collate "C" not null,
  -- Chosen by the caller, unique among the owner's plants only: nobody learns
  -- which ids others use.
  id bigint not null,
  name text not null,
  tag text,
  created_at timestamptz not null default now(),
  -- Serves the list in id order, the delete and the check for a taken id.
  constraint plants_pkey primary key (owner, id)
);

-- Down Migration

drop table plants;
