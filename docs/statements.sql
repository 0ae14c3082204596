-- The statements on rows of users, as the service sends them. Written by npm run sql.
-- To try a statement in psql, paste it with its example. The whole file changes nothing.
begin;

-- Creates one row.
prepare "plants-insert-1" as
insert into plants (owner, id, name, tag)
values ($1, $2, $3, $4)
on conflict do nothing returning owner, id;

execute "plants-insert-1" ('alice', 1, 'Monstera deliciosa', 'tropical');

-- Creates a batch. A batch has one of 32 sizes: copies of the last row fill up a larger batch.
prepare "plants-insert-4" as
insert into plants (owner, id, name, tag)
values ($1, $2, $3, $4), ($5, $6, $7, $8), ($9, $10, $11, $12), ($13, $14, $15, $16)
on conflict do nothing returning owner, id;

execute "plants-insert-4" ('alice', 2, 'Monstera deliciosa', 'tropical', 'alice', 3, 'Monstera deliciosa', 'tropical', 'bob', 1, 'Monstera deliciosa', 'tropical', 'bob', 2, 'Monstera deliciosa', 'tropical');

-- After a create that has failed: whether the stored row equals the sent row.
prepare "plants-same" as
select from plants where owner = $1 and id = $2
and (name, tag) is not distinct from ($3, $4);

execute "plants-same" ('alice', 1, 'Monstera deliciosa', 'tropical');

-- Reads the first page of one list, or a page of a long list. $3: rows, $4: bytes.
prepare "plants-page" as
select count, case when count = $3 then last_id end as last_id,
  date_part('epoch', clock_timestamp() - statement_timestamp()) as seconds,
  case when not has_large and octet_length(name) + octet_length(tag) <= $4 then name end,
  case when not has_large and octet_length(name) + octet_length(tag) <= $4 then tag end
from (
  select count(*) as count, max(id) as last_id, bool_or(is_large) as has_large,
    json_agg(case when not is_large then name end order by id)::text as name,
    json_agg(case when not is_large then tag end order by id)::text as tag
  from (
    select id, name, tag, greatest(0, octet_length(name), octet_length(tag)) > 256 as is_large
    from plants where owner = $1 and id between $2 and $5 order by id limit $3
  ) as item
) as page;

execute "plants-page" ('alice', -9223372036854775808, 101, 65536, 9223372036854775807);

-- Reads the first pages of several lists.
prepare "plants-pages" as
select n, page.*
from unnest((select $1::text[]), (select $2::bigint[]), (select $3::bigint[]))
  with ordinality as list (owner, first, max_rows, n)
cross join lateral (
select count, case when count = list.max_rows then last_id end as last_id,
  date_part('epoch', clock_timestamp() - statement_timestamp()) as seconds,
  case when not has_large and octet_length(name) + octet_length(tag) <= 16384 then name end,
  case when not has_large and octet_length(name) + octet_length(tag) <= 16384 then tag end
from (
  select count(*) as count, max(id) as last_id, bool_or(is_large) as has_large,
    json_agg(case when not is_large then name end order by id)::text as name,
    json_agg(case when not is_large then tag end order by id)::text as tag
  from (
    select id, name, tag, greatest(0, octet_length(name), octet_length(tag)) > 256 as is_large
    from plants where owner = list.owner and id >= list.first order by id limit list.max_rows
  ) as item
) as page
) as page;

execute "plants-pages" (array['alice', 'bob'], array[-9223372036854775808, 1], array[101, 3]);

-- Reads a page that is too large for the statement above.
prepare "plants-large-page" as
with item as (
  select id, name, tag,
    0 + coalesce(octet_length(name), 0) + coalesce(octet_length(tag), 0) as bytes
  from plants where owner = $1 and id between $2 and $5 order by id limit $3
), stored as (
  select *, sum(bytes) over (order by id) - bytes as bytes_before from item
), written as (
  select *, row_number() over (order by id) as n,
    sum(0 + coalesce(octet_length(to_json(name)::text), 0) + coalesce(octet_length(to_json(tag)::text), 0))
      over (order by id) as json_bytes
  from stored where bytes_before < $4::bigint
)
select count(*), case when count(*) = $3 or count(*) < (select count(*) from item) then max(id) end, 0,
  json_agg(name order by id), json_agg(tag order by id)
from written where json_bytes <= $4::bigint or n = 1;

execute "plants-large-page" ('alice', -9223372036854775808, 2000, 131072, 9223372036854775807);

-- Finds the end of a long list: the first row after $3 rows.
prepare "plants-end" as
select id from plants where owner = $1 and id >= $2 order by id offset $3 limit 1;

execute "plants-end" ('alice', 1, 2);

-- Deletes one row.
prepare "plants-delete-one" as
delete from plants where owner = $1 and id = $2 returning owner, id;

execute "plants-delete-one" ('alice', 1);

-- Deletes a batch.
prepare "plants-delete" as
delete from plants
using unnest((select $1::text[]), (select $2::bigint[])) as key (owner, id)
where plants.owner = any (array[key.owner]) and plants.id = key.id
returning plants.owner, plants.id;

execute "plants-delete" (array['alice', 'bob'], array[2, 1]);

deallocate all;
rollback;
