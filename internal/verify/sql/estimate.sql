-- About how many rows a table has.
select greatest(reltuples, 0)::bigint from pg_class where oid = to_regclass($1)
