-- Citus can distribute the table by owner: every statement names the owner, and the table has no sequence,
-- foreign key or trigger.
create table plants (
  -- The user that the plant belongs to. With the collation "C", the sort order is the same on every server.
  owner text collate "C" not null,
  -- Chosen by the client, and unique per owner. If ids were unique in the whole table, a rejected id would
  -- reveal a plant of another user.
  id bigint not null,
  name text not null,
  tag text,
  created_at timestamptz not null default now(),
  -- The index of the key serves creates, deletes and lists.
  constraint plants_pkey primary key (owner, id)
);
