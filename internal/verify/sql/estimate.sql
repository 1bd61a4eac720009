-- Estimated number of rows of a table.
select greatest(reltuples, 0)::bigint from pg_class where oid = to_regclass($1)
