-- The cleaner's statements.

-- name: CleanBegin :one
-- Settings of one transaction that deletes a batch, and whether this process may: of all on the database
-- one cleans a table at a time. As for the engine's batches the index is taken however empty the table was.
select pg_try_advisory_xact_lock(77003, hashtext(@name::text)) as leads,
    set_config('lock_timeout', '100', true),
    set_config('statement_timeout', '30000', true),
    set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('jit', 'off', true);
