-- Batches and their commands behind a batch.
select count(*), coalesce(sum(commands), 0)::bigint from public.commit_batches where batch_id > $1
