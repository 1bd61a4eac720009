-- Settings of one slice's transaction: its plans use indexes only, whatever the statistics.
select set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true),
    set_config('plan_cache_mode', 'force_custom_plan', true),
    set_config('jit', 'off', true)
