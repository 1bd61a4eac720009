-- Settings of the transaction that compares the schema: those that change how Postgres prints definitions, and no JIT,
-- which takes seconds to compile the query.
select set_config('jit', 'off', true), set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO', true),
    set_config('IntervalStyle', 'postgres', true), set_config('bytea_output', 'hex', true),
    set_config('quote_all_identifiers', 'off', true)
