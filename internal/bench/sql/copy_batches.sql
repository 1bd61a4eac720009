-- The journal's batches.
copy public.commit_batches (batch_id, committed_at, commands, instance) from stdin
