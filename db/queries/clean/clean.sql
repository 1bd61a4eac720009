-- Statements of the background task that deletes expired rows.

-- name: CleanBegin :one
-- Settings of a transaction that deletes one batch of rows, and an advisory lock, so that one process of the database
-- cleans a table at a time. As in the engine's batches, indexes are used even on empty tables.
select pg_try_advisory_xact_lock(77003, hashtext(@name::text)) as leads,
    set_config('lock_timeout', '100', true),
    set_config('statement_timeout', '30000', true),
    set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('jit', 'off', true);
