-- The schema of the ledger comes after pg_catalog, so that no object in it takes the place of one of Postgres.
select set_config('search_path', 'pg_catalog, ' || quote_ident(n.nspname) || ', pg_temp', true)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.oid = $1
