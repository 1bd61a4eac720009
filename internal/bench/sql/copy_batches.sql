-- The journal's batches.
copy public.commit_batches (batch_id, recorded_at, commands, instance) from stdin
