-- With the collation "C", the sort order of the index is the same on every server. Another collation may
-- change with the system's library, and the index then misses users.
alter table tokens alter column username type text collate "C";
