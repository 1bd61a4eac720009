-- Settings of the transaction that compares the schema. The schema of the ledger comes after pg_catalog, so that its
-- objects cannot shadow those of Postgres. The other settings fix how Postgres prints definitions, except jit, which
-- would take seconds to compile the query.
select set_config('search_path', 'pg_catalog, ' || quote_ident(n.nspname) || ', pg_temp', true),
    set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO', true),
    set_config('IntervalStyle', 'postgres', true), set_config('bytea_output', 'hex', true),
    set_config('quote_all_identifiers', 'off', true), set_config('jit', 'off', true)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.oid = $1
